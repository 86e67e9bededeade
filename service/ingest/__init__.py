"""Turn an uploaded file into arrays, trusting nothing in it.

`python -m service.ingest` runs this package in a process of its own, under resource limits. It tells its parent one
member of a closed set of faults, and nothing else: no file name, label, count or exception text of the upload.
"""
