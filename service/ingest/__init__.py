"""Convert an uploaded file to arrays in a confined process, with resource limits and without the service's credentials.

Start with `request`, its input, and `__main__`, which runs it; `faults` explains its one-word answers. The process
never trusts the upload, and never reports a file name, label, count or exception text.
"""
