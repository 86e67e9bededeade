"""The process of one attempt: it opens data, pays, trains and publishes.

Start with `runner`, then read a file of `kinds`. An attempt that is cancelled or superseded writes nothing more: it
raises `Cancelled` or `StaleAttempt`.
"""
