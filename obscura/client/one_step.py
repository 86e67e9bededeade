"""Push images to an account that can pay: the first part of `client.train(images, epsilon=1)`."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import TypeAdapter, ValidationError
from rich.console import Console

from obscura.client.datasets import default_name, require_statements
from obscura.client.progress import preparation_progress
from obscura.client.resources import Account, Dataset
from obscura.errors import BudgetError
from obscura.preparing import Arrays, Choices, Package, PackingError, prepare
from obscura.private_files import is_own, replace_file
from obscura.stopping import go_on
from obscura.wire.budgets import DELTA_USUAL_MOST
from obscura.wire.job_schemas import RECIPE_USUAL
from obscura.wire.schemas import DatasetRecord
from obscura.wire.wording import show_epsilon

if TYPE_CHECKING:
    from obscura.client.client import Client

RECIPE = RECIPE_USUAL
RECORDED_MAX = 1000  # uploads that the record on this machine keeps
_DIGESTS = TypeAdapter(dict[str, str])

ImageInput = str | Path | Dataset | np.ndarray[Any, np.dtype[np.uint8]]
Labels = Sequence[int | str] | np.ndarray[Any, Any] | str | Path | None


def push_for(
    client: Client,
    console: Console,
    images: ImageInput | DatasetRecord,
    labels: Labels,
    *,
    account: str | None,
    epsilon: float,
    preparing: dict[str, Any],
    recipe: str = RECIPE,
    options: dict[str, Any] | None = None,
) -> DatasetRecord:
    """Prepare images, find or open the account that pays, declare a dataset, plan the training and upload.

    Accounts are opened and datasets declared only after all images are validated. Nothing is uploaded unless the
    account can pay. Images that this user uploaded to the account before are not uploaded again. If `images` is a
    dataset, it is returned.

    Raises:
        ChoiceNeeded, PackingError: As for `datasets.push`. Nothing was done.
        NoSuchName: There is no such account.
        BudgetError: The account cannot pay. Nothing was uploaded, and the declaration was deleted.
        RequestError: The service rejected the account, the declaration, the plan or the content.
    """
    if isinstance(images, DatasetRecord):
        return images
    facts = dict(preparing)
    choices = {name: facts.pop(name) for name in Choices.model_fields if name in facts}
    if isinstance(images, np.ndarray):
        if labels is None or isinstance(labels, str | Path):
            raise PackingError("Images in memory need labels, one for each image: train(images, labels, epsilon=...).")
        place: Path | Arrays = Arrays(images, labels, facts.pop("subjects", None))
    else:
        place, choices["labels"] = Path(images), labels
    name, at_most, subjects_at_most = (facts.pop(fact, None) for fact in ("name", "at_most", "subjects_at_most"))
    account_name = name or default_name(place)
    named = (each for each in client.accounts() if each.name == account_name)
    payer = next(named, None) if account is None else client.find_account(account)
    by_subject = subjects_at_most is not None if payer is None else payer.unit == "subject"
    require_statements(at_most, subjects_at_most, private=True, by_subject=by_subject)
    with preparation_progress(console) as watch:
        package = prepare(place, Choices(**choices), subjects=by_subject, on_image=watch.on_image)
        package.require_within(at_most, subjects_at_most)
        order: dict[str, Any] = {"recipe": recipe, "epsilon": epsilon, "options": options}
        if payer is not None:
            uploaded = _uploaded_before(client, payer, package, name, at_most, subjects_at_most)
            if uploaded is not None:
                _require_budget(client, uploaded, payer, order)
                return uploaded
        free_name = client.datasets.free_name(payer.id if payer else None, name, place)
        if payer is None:
            payer = client.create_account(
                name=account_name,
                owner="owner",
                epsilon=epsilon,
                delta=usual_delta(at_most),
                unit="subject" if by_subject else "record",
            )
        bounds = {"at_most": at_most, "subjects_at_most": subjects_at_most}
        facts = {"say": partial(console.print, soft_wrap=True)} | bounds | facts
        dataset = client.datasets.declare(package, name=free_name, account_id=payer.id, **facts)
        try:
            _require_budget(client, dataset, payer, order)
        except BaseException:
            dataset.delete()
            raise
        digests: list[str] = []
        package = replace(package, open=partial(_digested, package, digests))
        sent = client.datasets.send(dataset, package, watch.on_bytes)
        if digests:
            recorded = {**_read_record(), sent.id: digests[-1]}
            newest = dict(list(recorded.items())[-RECORDED_MAX:])
            with suppress(OSError, RuntimeError):  # RuntimeError: the user has no home folder
                replace_file(_record_path(), _DIGESTS.dump_json(newest))
        return sent


def _require_budget(client: Client, dataset: Dataset, payer: Account, order: dict[str, Any]) -> None:
    """Raise BudgetError unless the account can pay for a training."""
    plan = client.plan(dataset.id, **order)
    if plan.budget.affordable:
        return
    budget, affordable = plan.budget, payer.balance.affordable_epsilon
    price, left = show_epsilon(plan.cost_epsilon, up=True), show_epsilon(budget.left_epsilon, up=False)
    numbers = budget.model_dump(include={"left_epsilon", "left_nano", "limit_epsilon"})
    numbers |= {
        "requested_epsilon": plan.cost_epsilon,
        "requested_nano": plan.cost_nano,
        "affordable_epsilon": affordable,
    }
    lower = f"Lower epsilon to {show_epsilon(affordable, up=False)}, use" if affordable > 0 else "Use"
    raise BudgetError(
        "insufficient_budget",
        409,
        f"Not enough budget: this training needs epsilon {price}; account {payer.name} has {left} left of "
        f"{show_epsilon(budget.limit_epsilon, up=False)}. Nothing was uploaded. {lower} an existing release (free), or "
        "request a higher limit.",
        numbers,
        [],
    )


def _uploaded_before(
    client: Client, payer: Account, package: Package, name: str | None, at_most: int, subjects_at_most: int | None
) -> Dataset | None:
    """Return the account's dataset that this user declared for the same images with the same limits, if there is one.

    Compares this machine's record of its own uploads, because the service shows no digests of private content.
    """
    digests, stated = _read_record(), (package.classes, package.height, package.width, package.channels)
    candidates = [
        dataset
        for dataset in client.datasets()
        if dataset.id in digests
        and (dataset.state, dataset.account_id, name or dataset.name) == ("ready", payer.id, dataset.name)
        and (tuple(dataset.classes), dataset.height, dataset.width, dataset.channels) == stated
        and (dataset.records_declared, dataset.subjects_declared) == (at_most, subjects_at_most)
        and dataset.subjects_recognised == package.recognised
    ]
    if not candidates:
        return None
    found: list[str] = []
    for _ in _digested(package, found):
        go_on()
    return next((dataset for dataset in candidates if digests[dataset.id] == found[-1]), None)


def _digested(package: Package, digests: list[str]) -> Iterator[bytes]:
    digest = hashlib.sha256()
    for chunk in package.open():
        digest.update(chunk)
        yield chunk
    digests.append(digest.hexdigest())


def _record_path() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "obscura" / "uploads.json"


def _read_record() -> dict[str, str]:
    path = _record_path()
    try:
        return _DIGESTS.validate_json(path.read_bytes()) if is_own(path) else {}
    except (OSError, ValidationError, RuntimeError):
        return {}


def usual_delta(at_most: int) -> float:
    """Return the largest power of ten below 1 / (10 x number of records), but at most 1e-4."""
    return min(DELTA_USUAL_MOST, float(10.0 ** -(math.floor(math.log10(10 * at_most)) + 1)))
