"""The second opinion on the ledger: logs are replayed from their stored bytes and compared with all that repeats them.

Of the code that writes, this knows what a hash is taken of (`ledger.chain`, `ledger.commitments`) and nothing else.
"""
