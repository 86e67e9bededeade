"""Tables of papers, computed again. Start with `__main__.py`. No other benchmark imports them."""
