"""Forms that create something: the API's schemas, errors at their fields, and idempotency.

Each form carries a random text, `once`, which works like an Idempotency-Key.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ValidationError
from sqlalchemy.orm import Session

from obscura.wire.grids import json_or_text
from privacy.errors import InvalidParameter, PrivacyError
from service.db.access_tables import Idempotency
from service.errors import InvalidInput, LargeDelta, ObscuraError
from service.jobs.submission import remember

Body = TypeVar("Body", bound=BaseModel)
OPTION = "option."  # how the names of the fields begin that stand for a recipe's options
_ONCE = re.compile(r"[0-9a-f]{32}")
# pydantic's words for what is missing or is no number, for people who see fields and no JSON
_WORDS = {"missing": "Fill this in.", "float_parsing": "This is a number.", "int_parsing": "This is a whole number."}


class FieldsRefused(InvalidInput):
    """Fields of a form are missing or invalid.

    Attributes:
        fields: Error messages by field.
    """

    code: ClassVar[str] = "invalid_input"

    def __init__(self, fields: Mapping[str, str]) -> None:
        super().__init__("Some fields need another look.", fields=dict(fields))
        self.fields = dict(fields)


def fresh_once() -> str:
    """Return the `once` of a new form."""
    return secrets.token_hex(16)


def once_of(form: Mapping[str, str]) -> str:
    """Return the `once` of a submitted form."""
    once = form.get("once", "")
    if not _ONCE.fullmatch(once):
        raise InvalidInput("This form is incomplete. Reload the page and try again.")
    return once


def read_body(schema: type[Body], fields: Mapping[str, Any]) -> Body:
    """Validate fields by a schema of the API; empty fields count as absent. Raise FieldsRefused."""
    try:
        return schema.model_validate({name: value for name, value in fields.items() if value not in ("", None, [])})
    except ValidationError as error:
        raise FieldsRefused(
            {str(item["loc"][0]): _WORDS.get(item["type"], f"{item['msg']}.") for item in error.errors()}
        ) from None


def problems_of(error: ObscuraError | PrivacyError) -> tuple[dict[str, str], str]:
    """Return the error messages of single fields, and the message of the whole form."""
    if isinstance(error, FieldsRefused):
        return error.fields, error.message
    said = error.message if isinstance(error, ObscuraError) else str(error)
    if isinstance(error, LargeDelta):
        return {"accept_large_delta": said}, said
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, InvalidParameter):
        cause = cause.__cause__
    if isinstance(cause, InvalidParameter):
        return {cause.name: said}, said
    return {}, said


def do_once(
    session: Session, principal_id: str, once: str, body: Mapping[str, Any], make: Callable[[], str], now: datetime
) -> str:
    """Create something, or return the id that the same form created before.

    Args:
        session: A writing transaction.
        body: JSON-able request; another body with the same `once` raises IdempotencyMismatch.
        make: Creates it and returns its id. If it raises, the form stays unused.
    """
    first = remember(session, principal_id, once, body, "", now)
    if first is not None:
        return first
    made = make()
    session.get_one(Idempotency, (principal_id, once)).resource_id = made
    session.flush()
    return made


def read_options(text: str) -> dict[str, Any]:
    """Parse recipe options, one `name = value` per line; values are JSON or plain text."""
    options: dict[str, Any] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, equals, value = (part.strip() for part in line.partition("="))
        if not name or not equals:
            raise FieldsRefused({"options": "Write one option a line, as name = value."})
        options[name] = json_or_text(value)
    return options


def _as_text(value: Any) -> str:
    bare = isinstance(value, str) and value == value.strip() and json_or_text(value) == value
    return str(value) if bare else json.dumps(value)


def read_option_fields(schema: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, Any]:
    """Parse the fields `option.NAME` of a form by a recipe's JSON Schema; empty ones count as absent."""
    given = {name: fields.get(f"{OPTION}{name}", "").strip() for name in schema["properties"]}
    return {
        name: text if schema["properties"][name].get("type") == "string" else json_or_text(text)
        for name, text in given.items()
        if text
    }


def write_options(options: Mapping[str, Any]) -> str:
    """Format options for `read_options`."""
    return "\n".join(f"{name} = {_as_text(value)}" for name, value in options.items())
