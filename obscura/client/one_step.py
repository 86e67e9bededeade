"""Push images to an account that can pay: the first part of `client.train(images, epsilon=1)`."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from pydantic import TypeAdapter, ValidationError
from rich.console import Console

from obscura.client.accounts import Account
from obscura.client.datasets import declaration, default_name, require_statements
from obscura.client.progress import TerminalConsole, preparation_progress
from obscura.client.resources import Dataset, Job, Plan
from obscura.client.transport import Named
from obscura.errors import AlreadyTrained, BudgetError, in_python
from obscura.preparing import Arrays, Choices, Package, PackingError, prepare
from obscura.preparing.choices import ImageOptions
from obscura.private_files import is_own, replace_file
from obscura.stopping import go_on
from obscura.wire.budgets import EPSILON_LEAST, usual_delta
from obscura.wire.job_schemas import NEW_ACCOUNT, RECIPE_USUAL
from obscura.wire.schemas import DatasetRecord
from obscura.wire.wording import proposed_epsilon, show_epsilon

if TYPE_CHECKING:
    from obscura.client.client import Client

ROUNDING = 1e-6  # tolerance of the check before an upload; the service decides
RECORDED_MAX = 1000  # uploads that the record on this machine keeps
_DIGESTS = TypeAdapter(dict[str, str])

ImageInput = str | Path | DatasetRecord | np.ndarray[Any, np.dtype[np.uint8]]
Labels = Sequence[int | str] | np.ndarray[Any, Any] | str | Path | None


def begin(
    client: Client,
    console: Console,
    images: ImageInput,
    labels: Labels = None,
    *,
    epsilon: float | None = None,
    recipe: str = RECIPE_USUAL,
    options: dict[str, Any] | None = None,
    again: bool = False,
    **facts: Any,
) -> Job:
    """Push images to an account that can pay, and request a training; see `Client.train`."""
    order: dict[str, Any] = {"recipe": recipe, "options": options}
    stated = epsilon
    if isinstance(images, DatasetRecord):
        dataset = images
        if epsilon is None:
            epsilon = _epsilon(None, client.accounts.get(dataset.account_id) if dataset.account_id else None)
    else:
        dataset, epsilon = push_for(client, console, images, labels, epsilon=epsilon, **order, **facts)
    written = json.loads(json.dumps(options or {}))
    for job in () if again else client.transport.pages(Job, Job.PATH, account_id=dataset.account_id):
        same = (job.kind, job.dataset_id, job.recipe, job.options) == ("train", dataset.id, recipe, written)
        if same and stated in (None, job.epsilon) and (job.release_id or not job.finished):
            raise AlreadyTrained(job.id, job.release_id, job.epsilon or 0.0)
    return client.jobs.create(dataset, epsilon=epsilon, **order)


def push_for(
    client: Client,
    console: Console,
    images: str | Path | np.ndarray[Any, np.dtype[np.uint8]],
    labels: Labels,
    *,
    epsilon: float | None,
    limit: float | None = None,
    at_most: int | None = None,
    subjects_at_most: int | None = None,
    subjects: Sequence[int | str | bytes] | None = None,
    name: str | None = None,
    account: Named | None = None,
    recipe: str = RECIPE_USUAL,
    options: dict[str, Any] | None = None,
    **reading: Unpack[ImageOptions],
) -> tuple[Dataset, float]:
    """Prepare images, find or open the account that pays, declare a dataset, plan the training and upload.

    Returns the dataset and the epsilon of the training; see `Client.train`, also for the errors. Accounts are opened
    and datasets declared only after all images and the plan are validated; a declaration that cannot be paid is
    deleted. Images that this user uploaded to the account before are not uploaded again.
    """
    choices: dict[str, Any] = {**reading}
    if isinstance(images, np.ndarray):
        if labels is None or isinstance(labels, str | Path):
            raise PackingError("Images in memory need labels, one for each image: train(images, labels, epsilon=...).")
        place: Path | Arrays = Arrays(images, labels, subjects)
    else:
        place, choices["labels"] = Path(images), labels
    account_name = name or default_name(place)
    named = (each for each in client.accounts.list() if each.name == account_name)
    payer = next(named, None) if account is None else client.accounts.get(account)
    if payer is not None and limit not in (None, payer.epsilon):
        raise PackingError(
            f"Account {payer.name} exists, with epsilon {payer.epsilon:g} as its limit, so `limit` must be left out."
        )
    epsilon = _epsilon(epsilon, payer, limit)
    if payer is None and limit is not None and limit < epsilon:
        raise PackingError(f"Epsilon {epsilon:g} is above the limit of {limit:g}. Lower epsilon, or raise the limit.")
    by_subject = subjects_at_most is not None if payer is None else payer.unit == "subject"
    require_statements(at_most, subjects_at_most, private=True, by_subject=by_subject)
    assert at_most is not None
    if payer is not None:  # before any image is read
        most = max(payer.balance.affordable_epsilon, payer.balance.left_epsilon)
        _require_budget(payer, epsilon, epsilon <= most * (1 + ROUNDING))
    with preparation_progress(console) as watch:
        package = prepare(place, Choices(**choices), subjects=by_subject, on_image=watch.on_image)
        package.require_within(at_most, subjects_at_most)
        order: dict[str, Any] = {"recipe": recipe, "epsilon": epsilon, "options": options or {}}
        if payer is not None:
            uploaded = _uploaded_before(client, payer, package, name, at_most, subjects_at_most)
            if uploaded is not None:
                return uploaded, epsilon
        free_name = client.datasets.free_name(payer.id if payer else None, name, place)
        if payer is None:
            terms: dict[str, Any] = {"owner": "owner", "epsilon": limit or epsilon, "delta": usual_delta(at_most)}
            terms |= {"name": account_name, "unit": "subject" if by_subject else "record"}
            declared = declaration(package, free_name, NEW_ACCOUNT, at_most, subjects_at_most)
            first = {"account": terms | {"adjacency": "add_remove"}, "dataset": declared, **order}
            client.transport.post(Plan, f"{Account.PATH}/first-plan", first, repeatable=True)
            if limit is None:
                TerminalConsole(stderr=True).print(
                    f"Opening account {account_name}: epsilon {epsilon:g} becomes the lifetime limit for all trainings "
                    "on these images. To leave budget for more, state a higher limit=...",
                    soft_wrap=True,
                )
            payer = client.accounts.create(**terms)
        dataset = client.datasets.declare(
            package,
            name=free_name,
            account_id=payer.id,
            at_most=at_most,
            subjects_at_most=subjects_at_most,
            say=lambda line: console.print(in_python(line), soft_wrap=True),
        )
        try:
            plan = client.plan(dataset, **order)
            _require_budget(payer, plan.cost_epsilon, plan.budget.affordable)
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
        return sent, epsilon


def _epsilon(stated: float | None, payer: Account | None, limit: float | None = None) -> float:
    """Return the epsilon of a training. By default a third of what the account can pay, never all."""
    if stated is not None:
        return stated
    left = limit if payer is None else payer.balance.affordable_epsilon
    if left is None:
        raise PackingError(
            "--epsilon is missing: no account pays for these images yet. Choose it, such as --epsilon 1. It also "
            "becomes the lifetime budget of these images, unless you state a higher --limit, such as --limit 3."
        )
    return max(proposed_epsilon(left), EPSILON_LEAST)


def _require_budget(payer: Account, epsilon: float, affordable: bool) -> None:
    if affordable:
        return
    balance = payer.refresh().balance
    numbers = balance.model_dump(include={"left_epsilon", "left_nano", "limit_epsilon", "affordable_epsilon"})
    most, left = (show_epsilon(each, up=False) for each in (balance.affordable_epsilon, balance.left_epsilon))
    raise BudgetError(
        "insufficient_budget",
        409,
        f"Not enough budget: this training needs epsilon {show_epsilon(epsilon, up=True)}; account {payer.name} has "
        f"{left} left of {show_epsilon(balance.limit_epsilon, up=False)}. Nothing was uploaded. "
        f"{f'Lower epsilon to {most}, use' if balance.affordable_epsilon > 0 else 'Use'} an existing release (free), "
        "or request a higher limit.",
        numbers | {"requested_epsilon": epsilon},
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
        for dataset in client.datasets.list()
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
