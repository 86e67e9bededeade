"""Convert an uploaded file to arrays, in a confined process: `python -m service.ingest`.

The process has resource limits and none of the service's credentials, but it can use the network. It trusts nothing in
the upload, and reports one of a closed set of faults: never a file name, label, count or exception text.
"""
