"""Lower bounds on what a mechanism leaks, measured by attacks and compared with the proven upper bounds.

Start with `distinguishing.py` for many runs of a mechanism, and `one_run.py` for one run with canaries.
A low bound never proves privacy. No service code imports this package.
"""
