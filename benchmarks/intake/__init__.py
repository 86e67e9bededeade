"""Does every input go in as people have it? `python -m benchmarks.intake --json FILE` builds and pushes all of them.

`inputs.py` says what an input is, `kinds/` holds them, one file for each kind, and `ways.py` pushes them.
"""
