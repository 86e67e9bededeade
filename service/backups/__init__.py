"""Back up the service while it runs, and restore a backup into an empty place."""
