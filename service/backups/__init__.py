"""Back up and restore an installation, and accept the losses of a restored database.

Start with `making`, then `restoring` and `accepting`. Nothing here overwrites a database or files that exist.
"""
