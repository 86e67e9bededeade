"""Back up and restore an installation, and accept what a restored database lacks.

Start with `making`, then `restoring` and `accepting`. Nothing here overwrites a database or files that exist.
"""
