"""Gradient estimators, one paper per file: all that a network's training may learn from a batch of private records."""
