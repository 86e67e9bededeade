"""Filters of lists: name or id, state, account, recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Query
from sqlalchemy import ColumnElement, or_, select
from sqlalchemy.orm import Session

from obscura.wire.words import DatasetState, JobState
from privacy.plans.registry import RECIPES
from service.db.ledger_tables import AccountRow
from service.errors import InvalidInput
from service.identity.access import visible
from service.views.rows import ROWS_MAX
from service.wording import JOB_STATES

SEARCHED_MAX = 2000  # of the newest, whose names are looked at: a search must not read a whole table

Text = Annotated[str, Query(max_length=100)]


@dataclass(frozen=True)
class Filters:
    """Filters of a list; empty ones do not apply."""

    q: Text = ""
    state: Text = ""
    account: Text = ""
    recipe: Text = ""
    before: Annotated[str | None, Query(max_length=64, description="Id of the last row of the page before.")] = None

    def address(self, path: str) -> str:
        """Return the address of the list with these filters."""
        chosen = {name: value for name, value in self._texts().items() if value}
        return f"{path}?{urlencode(chosen)}" if chosen else path

    def shown(self, session: Session, path: str) -> dict[str, Any]:
        """Return the template values that every list needs: filters, choices and position."""
        named = visible(session, AccountRow, select(AccountRow.id, AccountRow.name))
        choices = named.order_by(AccountRow.name).limit(ROWS_MAX)
        return {
            "filters": self._texts(),
            "list_path": self.address(path),
            "account_choices": [(row.id, row.name) for row in session.execute(choices)],
            "before": self.before,
        }

    def _texts(self) -> dict[str, str]:
        return {name: value for name, value in asdict(self).items() if name != "before"}

    def conditions(
        self, session: Session, table: Any, by: Sequence[str], *, states: Sequence[str] = ()
    ) -> list[ColumnElement[bool]]:
        """Return the conditions on a table. Raise InvalidInput for unknown values and filters that do not apply.

        Args:
            by: Filters of this list; the table has their columns.
            states: States that its rows may have.
        """
        foreign = [name for name, value in self._texts().items() if value and name not in by]
        if foreign:
            raise InvalidInput(f"This list cannot be narrowed by {' and '.join(foreign)}, only by {', '.join(by)}.")
        found: list[ColumnElement[bool]] = []
        if self.state:
            found.append(table.state == _one_of("state", self.state, states))
        if self.recipe:
            found.append(table.recipe == _one_of("recipe", self.recipe, list(RECIPES)))
        if self.account:
            found.append(table.account_id == self.account)
            own = visible(session, AccountRow, select(AccountRow.id)).where(AccountRow.id == self.account)
            found.append(own.exists())
        if self.q:
            newest = visible(session, table, select(table.id)).order_by(table.created_at.desc()).limit(SEARCHED_MAX)
            named = table.id.in_(newest) & table.name.icontains(self.q, autoescape=True)
            found.append(or_(table.id == self.q, named))
        return found


DATASET_STATES = [(state.value, state.value.capitalize()) for state in DatasetState]
JOB_STATE_CHOICES = [(state.value, JOB_STATES[state]) for state in JobState]
RECIPE_CHOICES = [(recipe.name, recipe.title) for recipe in RECIPES.values()]


def _one_of(what: str, value: str, known: Sequence[str]) -> str:
    if value not in known:
        raise InvalidInput(f"There is no such {what}. Choose one of {', '.join(known)}.")
    return value
