"""What DataLens is compared with, one paper a file."""
