"""Prices of releases, and the guarantee of all that an account has released.

Start with `Filter` in `filter.py`; the proof is in docs/explanation/accounting.md.
Nothing here reads private data or imports torch.
"""
