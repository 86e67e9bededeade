"""The `obscura` command line: commands that call a service through the client, and show the result.

Start at `app.py`, which lists every command. This package never imports the server: an installed server adds its own
commands through `server_side.py`.
"""


def main() -> None:
    """Run the command line."""
    from obscura.cli import app  # here, not above: the server's commands import from this package

    app.main()
