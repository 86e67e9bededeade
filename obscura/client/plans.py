"""What a service can train, what a training would cost, and what it would make, tried on public images."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

from obscura.client.accounts import AccountClient
from obscura.client.async_resources import AsyncMadeByJob
from obscura.client.resources import MadeByJob
from obscura.client.verbs import verb
from obscura.wire import job_schemas, recipe_schemas

__all__ = ["AsyncPreview", "Preview"]


class Preview(MadeByJob, job_schemas.PreviewRecord):
    """A plan tried on public images."""

    PATH = "/v1/previews"

    def save_grid(self, path: Path | str) -> Path:
        """Save the image of what was drawn, as PNG."""
        return self._save("grid.png", path)


class AsyncPreview(AsyncMadeByJob, job_schemas.PreviewRecord):
    """A plan tried on public images."""

    save_grid = verb(Preview.save_grid)


class PlanClient(AccountClient):
    """The verbs that hold nothing and touch no data."""

    def recipes(self) -> list[recipe_schemas.RecipeRecord]:
        """What this service can train, and with which options."""
        return list(self._get(recipe_schemas.RecipeList, "/v1/recipes").items)

    def recipe(self, name: str) -> recipe_schemas.RecipeRecord:
        """Read a recipe: presets, defaults and the JSON Schema of its options."""
        return self._get(recipe_schemas.RecipeRecord, f"/v1/recipes/{quote(name, safe='')}")

    def plan(
        self,
        dataset_id: str,
        *,
        recipe: str,
        epsilon: float,
        options: dict[str, Any] | None = None,
    ) -> job_schemas.PlanRecord:
        """What a training would do and cost. No data is touched."""
        body = {"dataset_id": dataset_id, "recipe": recipe, "epsilon": epsilon, "options": options or {}}
        return self._repeat(job_schemas.PlanRecord, "/v1/plans", body)

    def preview(
        self,
        dataset_id: str,
        *,
        recipe: str,
        epsilon: float,
        options: dict[str, Any] | None = None,
        stand_in_dataset_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> Preview:
        """Ask what a training would make, tried on public images; `wait()` for the forecast. It costs nothing.

        Args:
            stand_in_dataset_id: Public images that it is tried on.
            idempotency_key: The same key and request give the same preview.
        """
        body = {"dataset_id": dataset_id, "recipe": recipe, "epsilon": epsilon, "options": options or {}}
        body["stand_in_dataset_id"] = stand_in_dataset_id
        return Preview.bound(self.transport, self.transport.create(Preview.PATH, body, idempotency_key))


class AsyncPlanClient:
    """`PlanClient` for asyncio."""

    recipes = verb(PlanClient.recipes)
    recipe = verb(PlanClient.recipe)
    plan = verb(PlanClient.plan)
    preview = verb(PlanClient.preview, AsyncPreview.of)
