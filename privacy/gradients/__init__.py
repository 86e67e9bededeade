"""Gradient estimators, one paper per file: the only information that training gets from a batch of private records."""
