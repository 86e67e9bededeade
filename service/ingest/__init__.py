"""Turn an uploaded file into arrays, in a confined process: `python -m service.ingest`.

It trusts nothing in the upload, and reports one member of a closed set of faults: never a file name, label, count or
exception text.
"""
