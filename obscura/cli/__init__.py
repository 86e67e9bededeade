"""The `obscura` command line: commands that call a service through the client, and show the result.

Start at `app.py`, which lists every command. This package never imports the server: an installed server adds its own
commands through `server_side.py`.
"""

import sys

import typer


def main() -> None:
    """Run the command line. If an optional package is missing, print the command that installs it."""
    from obscura.cli.app import app  # here, not above: the server's commands import from this package
    from obscura.cli.console import reporting
    from obscura.extras import extras

    try:
        with reporting(as_json="--json" in sys.argv), extras():
            app()
    except typer.Exit as leaving:
        sys.exit(leaving.exit_code)
