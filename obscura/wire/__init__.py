"""Definitions that service and clients share: requests, records, words, formats, and rules for texts and uploads.

Start with `schemas.py`, which defines the fields that a response may contain. This package never opens a file or a
connection, and it imports no other part of Obscura.
"""
