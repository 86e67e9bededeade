"""Authenticate callers and decide what they may see and do: keys, sessions, admins, people, projects, decisions.

Start with `access`, which defines the rows that a caller can see, and `auth`, which identifies callers. Nothing here
commits a transaction or depends on a web framework; only `provider` handles requests and calls another service.
"""
