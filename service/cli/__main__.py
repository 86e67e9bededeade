"""`python -m service.cli`: the `obscura` command."""

from service.cli import main

main()
