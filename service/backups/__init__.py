"""Backups: made while the service runs, restored into a place that is empty, and tried out in a drill."""
