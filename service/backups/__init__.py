"""Backups: made while the service runs, and restored into an empty place."""
