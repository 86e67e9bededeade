"""Who asks and what they may do: keys, admins, people of a sign-in provider, projects, and decisions of two people.

`access` holds the one rule of which rows a caller sees, `recording` the audit log of what callers did. Functions take a
session and never commit; nothing here knows HTTP, and only `provider` calls another service.
"""
