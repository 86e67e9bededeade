"""Aggregators of teachers' votes, one paper per file."""
