"""`python -m obscura.cli`: the `obscura` command."""

from obscura.cli.app import main

main()
