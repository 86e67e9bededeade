"""The `obscura` command: what talks to a service. What runs one joins from the packages of a server."""


def main() -> None:
    """Run the command line."""
    from obscura.cli import app  # not before: what a server adds imports its parts from here

    app.main()
