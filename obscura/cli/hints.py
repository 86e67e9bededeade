"""The next command, for errors whose own sentence names none."""

from __future__ import annotations

from obscura.client import ApiError, AuthError, BudgetError, ConnectionFailed, NotFoundError
from obscura.client.transport import is_here

LISTED = ("account", "dataset", "job", "release", "sweep")


def next_command(error: Exception) -> str:
    """One sentence that names what to run next; empty where the error says so itself."""
    if isinstance(error, ConnectionFailed):
        if is_here(error.url):
            return "To start a service here: obscura up"
        return f"Is the address right? To give another: obscura login {error.url}"
    if isinstance(error, AuthError) and error.status == 401:
        return "To give another key: obscura login"
    if isinstance(error, BudgetError):
        return "What is left: obscura budget show"
    if isinstance(error, NotFoundError):
        noun = next((noun for noun in LISTED if noun in error.detail.lower()), None)
        return f"To see those that there are: obscura {noun}s list" if noun else ""
    if isinstance(error, ApiError) and "parameter" in error.numbers:
        return "To see what can be chosen: obscura recipes"
    return ""
