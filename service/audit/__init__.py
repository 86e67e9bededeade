"""Verify the ledger independently: replay the logs from their stored bytes and compare the results.

Start with `verify`; `replay` has the rules. This package never writes an account, a hold or an entry. Of the code that
writes the ledger, it imports only the definitions of the hashes (`ledger.chain`).
"""
