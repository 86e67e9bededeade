"""Uploads of every kind, sent as people send them. Start with `inputs.py`. Nothing here trains a model."""
