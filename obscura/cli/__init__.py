"""The `obscura` command with the client's commands. Server packages add the commands that run a service."""


def main() -> None:
    """Run the command line."""
    from obscura.cli import app  # here, not above: the server's commands import from this package

    app.main()
