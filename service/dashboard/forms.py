"""What every form that makes something shares: the API's schemas, refusals at its fields, and doing it once.

A form carries a random text of its own, `once`: sent twice, it makes one thing, as an Idempotency-Key does.
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
    """Fields of a form are missing or out of range.

    Attributes:
        fields: what is wrong, by the field's name.
    """

    code: ClassVar[str] = "invalid_input"

    def __init__(self, fields: Mapping[str, str]) -> None:
        super().__init__("Some fields need another look.", fields=dict(fields))
        self.fields = dict(fields)


def fresh_once() -> str:
    """Return what a new form sends as `once`."""
    return secrets.token_hex(16)


def once_of(form: Mapping[str, str]) -> str:
    """Return a form's own random text.

    Raises:
        InvalidInput: it has none, so that it could be sent twice.
    """
    once = form.get("once", "")
    if not _ONCE.fullmatch(once):
        raise InvalidInput("This form is incomplete. Reload the page and try again.")
    return once


def read_body(schema: type[Body], fields: Mapping[str, Any]) -> Body:
    """Read fields by the schema that the API reads requests by; empty ones count as absent.

    Raises:
        FieldsRefused: some are missing, out of range, or unknown.
    """
    try:
        return schema.model_validate({name: value for name, value in fields.items() if value not in ("", None, [])})
    except ValidationError as error:
        raise FieldsRefused(
            {str(item["loc"][0]): _WORDS.get(item["type"], f"{item['msg']}.") for item in error.errors()}
        ) from None


def problems_of(error: ObscuraError | PrivacyError) -> tuple[dict[str, str], str]:
    """Return what a refusal says of single fields, by their names, and what it says of the whole form."""
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
    """Make something, or find what the same form has made before.

    Args:
        session: in a writing transaction.
        principal_id: who asks; the form is theirs.
        once: the form's own text.
        body: what is asked for, JSON-able.
        make: makes it and returns its id; whatever it raises leaves the form unused.
        now: aware.

    Raises:
        IdempotencyMismatch: the form made something else before.
    """
    first = remember(session, principal_id, once, body, "", now)
    if first is not None:
        return first
    made = make()
    session.get_one(Idempotency, (principal_id, once)).resource_id = made
    session.flush()
    return made


def read_options(text: str) -> dict[str, Any]:
    """Read a recipe's options, one `name = value` a line; values are JSON, or else texts.

    Raises:
        FieldsRefused: a line has no name, or no equals sign.
    """
    options: dict[str, Any] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, equals, value = (part.strip() for part in line.partition("="))
        if not name or not equals:
            raise FieldsRefused({"options": "Write one option a line, as name = value."})
        options[name] = json_or_text(value)
    return options


def _as_text(value: Any) -> str:
    """Write a value so that `json_or_text` reads it: the text 7 in quotes, for without them it is a number."""
    bare = isinstance(value, str) and value == value.strip() and json_or_text(value) == value
    return str(value) if bare else json.dumps(value)


def read_option_fields(schema: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, Any]:
    """Read the options that a form has fields for, `option.NAME` each; empty ones count as absent.

    Args:
        schema: JSON Schema of a recipe's options.
        fields: what was sent.
    """
    given = {name: fields.get(f"{OPTION}{name}", "").strip() for name in schema["properties"]}
    return {
        name: text if schema["properties"][name].get("type") == "string" else json_or_text(text)
        for name, text in given.items()
        if text
    }


def write_options(options: Mapping[str, Any]) -> str:
    """Write options as `read_options` reads them."""
    return "\n".join(f"{name} = {_as_text(value)}" for name, value in options.items())
