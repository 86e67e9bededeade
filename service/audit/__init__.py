"""The second opinion on the ledger: replay the logs from their stored bytes and compare them.

Of the code that writes, this imports only the definitions of the hashes (`ledger.chain`).
"""
