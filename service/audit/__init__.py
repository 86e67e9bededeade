"""Verify the ledger independently: replay the logs from their stored bytes and compare the results.

Start with `verify`; `replay` has the rules. Of the code that writes the ledger, this package imports only the
definitions of the hashes (`ledger.chain`), and it never writes an account, a hold or an entry.
"""
