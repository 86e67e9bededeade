"""Verify the ledger independently: replay the logs from their stored bytes and compare the results.

Of the code that writes the ledger, this package imports only the definitions of the hashes (`ledger.chain`).
"""
