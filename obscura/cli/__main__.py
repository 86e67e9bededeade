"""`python -m obscura.cli`: the `obscura` command."""

from obscura.cli import main

main()
