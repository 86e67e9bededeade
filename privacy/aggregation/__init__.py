"""Aggregators of teachers' votes, one paper a file."""
