"""What goes over the wire about recipes; see `obscura.wire.schemas`."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from obscura.wire.budgets import Unit
from obscura.wire.schemas import ApiRecord


class RecipeRecord(ApiRecord):
    """A recipe of this service with all its options."""

    name: str = Field(description="What a job calls it.")
    title: str = Field(description="Its name for people.")
    publishes: str = Field(description="What its release is: a `generator`, a `classifier` or a `histogram`.")
    releases: str = Field(description="The same in words.")
    units: list[Unit] = Field(
        description="Units whose whole contribution it bounds: those of accounts that may use it."
    )
    presets: dict[str, dict[str, Any]] = Field(
        description="Named values of options, for the option `preset`; `default` holds where none is named."
    )
    defaults: dict[str, Any] = Field(description="What each option is where nothing is given.")
    follows: list[str] = Field(
        description="Options that follow from what was declared and from the budget where they are not given, with the "
        "default preset at least. A plan shows their values."
    )
    options: dict[str, Any] = Field(
        description="JSON Schema of the `options` of a request: of each its type, bounds, default and meaning."
    )


class RecipeList(ApiRecord):
    """Every recipe of the service."""

    items: list[RecipeRecord] = Field(description="What this page holds.")
