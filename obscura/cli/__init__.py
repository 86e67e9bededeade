"""The `obscura` command: the client's commands. The server's packages add the commands that run a service."""


def main() -> None:
    """Run the command line."""
    from obscura.cli import app  # not before: what a server adds imports its parts from here

    app.main()
