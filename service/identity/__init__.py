"""Authentication and permissions: keys, admins, people of a sign-in provider, projects, and two-person decisions.

`access` defines which rows a caller can see; `recording` writes the audit log. Functions take a session and never
commit. Nothing here depends on HTTP, and only `provider` calls another service.
"""
