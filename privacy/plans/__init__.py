"""Plans: the releases of a job, their noise and their cost, computed before a job starts.

Start with `build_plan` in `registry.py`; each recipe has a file with its options and its `RECIPE`.
Plans never read private data and never import torch.
"""
