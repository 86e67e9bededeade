"""Forms that are sent to pages, validated by the API's schemas with errors per field; and filters of lists."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, TypeVar
from urllib.parse import urlencode

from fastapi import Depends, Query
from pydantic import BaseModel, ValidationError
from sqlalchemy import ColumnElement, or_, select
from sqlalchemy.orm import Session

from obscura.wire.meanings import identifiers_in, is_part, why_personal
from obscura.wire.schemas import DatasetRequest
from obscura.wire.texts import json_or_text
from obscura.wire.words import DatasetState, JobState
from privacy.errors import InvalidParameter, PrivacyError
from privacy.plans.registry import RECIPES
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job
from service.db.ledger_tables import Account
from service.errors import InvalidInput, ObscuraError
from service.identity.access import visible
from service.views import ROWS_MAX

Body = TypeVar("Body", bound=BaseModel)
NAMES_SHOWN_MAX = 5  # in an error message
SEARCHED_MAX = 2000  # a search by name reads only the newest rows, not the whole table
Text = Annotated[str, Query(max_length=100)]
# Messages for people, who see fields instead of JSON, by pydantic's error type.
_WORDS = {"missing": "Fill this in.", "float_parsing": "Enter a number.", "int_parsing": "Enter a whole number."}


class FieldsRefused(InvalidInput):
    """Fields of a form are missing or invalid. Has the error messages by field."""

    def __init__(self, fields: Mapping[str, str]) -> None:
        super().__init__(" ".join(f"{name}: {message}" for name, message in fields.items()), fields=dict(fields))
        self.fields = dict(fields)


def read_body(schema: type[Body], fields: Mapping[str, Any]) -> Body:
    """Validate fields with an API schema; empty fields count as missing. Raise FieldsRefused if they are invalid."""
    try:
        return schema.model_validate({name: value for name, value in fields.items() if value not in ("", None, [])})
    except ValidationError as error:
        raise FieldsRefused(
            {str(item["loc"][0]): _WORDS.get(item["type"], f"{item['msg']}.") for item in error.errors()}
        ) from None


def read_declaration(form: Mapping[str, str]) -> DatasetRequest:
    """Return the request that declares a dataset.

    Raise FieldsRefused if a field is invalid, or unconfirmed class names look like names of people or subsets.
    """
    fields: dict[str, Any] = {name: form.get(name, "").strip() for name in DatasetRequest.model_fields}
    if not fields["account_id"]:
        raise FieldsRefused({"account_id": "Choose the account that protects the images."})
    fields["height"] = fields["height"] or fields["width"]  # square
    public = fields["account_id"] == "public"  # the option for public datasets, instead of an account
    fields |= {"visibility": "public", "account_id": None} if public else {"visibility": "private"}
    classes = [name.strip() for name in re.split(r"[,\n]", form.get("classes", "")) if name.strip()]
    fields["classes"] = classes
    fields["channels"] = int(fields["channels"]) if fields["channels"].isdecimal() else None
    if form.get("stated") != "yes":
        people = [name for name in classes if why_personal(name)] or identifiers_in(classes, few=False)
        odd = people or [name for name in classes if is_part(name)]
        if odd:
            like = "people" if people else "subsets, such as train or test"
            raise FieldsRefused(
                {
                    "classes": f"These look like {like}: {', '.join(odd[:NAMES_SHOWN_MAX])}. Class names become "
                    "public forever. Rename the folders, or tick the box below if these names are classes."
                }
            )
    return read_body(DatasetRequest, fields)


def problems_of(error: ObscuraError | PrivacyError) -> tuple[dict[str, str], str]:
    """Return the error messages by field, and the message for the whole form."""
    if isinstance(error, FieldsRefused):
        return error.fields, "Correct the marked fields."
    message = error.message if isinstance(error, ObscuraError) else str(error)
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, InvalidParameter):
        cause = cause.__cause__
    if isinstance(cause, InvalidParameter):
        return {cause.name: message}, message
    return {}, message


def read_options(text: str) -> dict[str, Any]:
    """Parse recipe options, one `name = value` per line. Values are JSON or plain text."""
    options: dict[str, Any] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, equals, value = (part.strip() for part in line.partition("="))
        if not name or not equals:
            raise FieldsRefused({"options": "Write one option per line, as name = value."})
        options[name] = json_or_text(value)
    return options


def write_options(options: Mapping[str, Any]) -> str:
    """Format options for `read_options`. Quotes a text that would parse as another type, such as a number."""
    bare = {name for name, value in options.items() if isinstance(value, str) and json_or_text(value.strip()) == value}
    return "\n".join(f"{name} = {value if name in bare else json.dumps(value)}" for name, value in options.items())


@dataclass(frozen=True)
class Filters:
    """Filters of a list. Empty filters do not apply."""

    q: Text = ""
    state: Text = ""
    account: Text = ""
    recipe: Text = ""
    before: Annotated[str | None, Query(max_length=64, description="Id of the last row on the previous page.")] = None

    def template_values(self, session: Session, path: str) -> dict[str, Any]:
        """Return the template values that every list needs: filters, accounts, position, and the filtered URL."""
        chosen = {name: value for name, value in self._texts().items() if value}
        named = visible(session, Account, select(Account.id, Account.name))
        choices = named.order_by(Account.name).limit(ROWS_MAX)
        return {
            "filters": self._texts(),
            "list_path": f"{path}?{urlencode(chosen)}" if chosen else path,
            "account_choices": [(row.id, row.name) for row in session.execute(choices)],
            "before": self.before,
        }

    def _texts(self) -> dict[str, str]:
        return {name: value for name, value in asdict(self).items() if name != "before"}

    def conditions(self, session: Session, table: Any, by: Sequence[str]) -> list[ColumnElement[bool]]:
        """Return the query conditions for a list of a table's rows. `by` names the filters that the list has.

        Raise InvalidInput for unknown values, and for filters outside `by`.
        """
        foreign = [name for name, value in self._texts().items() if value and name not in by]
        if foreign:
            raise InvalidInput(f"This list cannot be filtered by {' and '.join(foreign)}, only by {', '.join(by)}.")
        conditions: list[ColumnElement[bool]] = []
        for name, choices in (("state", STATES.get(table, [])), ("recipe", RECIPE_CHOICES)):
            value, known = getattr(self, name), [choice for choice, _ in choices]
            if value and value not in known:
                raise InvalidInput(f"There is no such {name}. Choose one of {', '.join(known)}.")
            if value:
                conditions.append(getattr(table, name) == value)
        if self.account:
            conditions.append(table.account_id == self.account)
            own = visible(session, Account, select(Account.id)).where(Account.id == self.account)
            conditions.append(own.exists())
        if self.q:
            newest = visible(session, table, select(table.id)).order_by(table.created_at.desc()).limit(SEARCHED_MAX)
            named = table.id.in_(newest) & table.name.icontains(self.q, autoescape=True)
            conditions.append(or_(table.id == self.q, named))
        return conditions


Filtered = Annotated[Filters, Depends()]
STATES: dict[Any, list[tuple[str, str]]] = {
    Dataset: [(state.value, state.value.capitalize()) for state in DatasetState],
    Job: [(state.value, state.value.capitalize()) for state in JobState],
}
RECIPE_CHOICES = [(recipe.name, recipe.title) for recipe in RECIPES.values()]
