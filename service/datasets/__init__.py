"""Datasets, from declaration to deletion.

Start with `states`, then follow an upload through `receiving`, `reading` and `vault`. This package never parses an
upload in the service's own process, and never charges an account.
"""
