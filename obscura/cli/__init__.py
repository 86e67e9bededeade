"""The `obscura` command: what talks to a service. What runs one joins from the packages of a server."""
