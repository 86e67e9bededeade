"""Gradient estimators: what a network's training may learn from one batch of private records, one paper per file."""
