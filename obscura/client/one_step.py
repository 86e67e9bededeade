"""From pictures to a dataset whose account can pay: what `client.train(pictures, epsilon=1)` does first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from obscura.client.accounts import AccountClient
from obscura.client.datasets import default_name, require_statements
from obscura.client.holdings import Account, Dataset
from obscura.client.progress import preparation_progress
from obscura.preparing import Arrays, PackingError, Wishes, prepare, read_choices
from obscura.wire.words import Unit

Pictures = str | Path | Dataset | np.ndarray[Any, np.dtype[np.uint8]]
Labels = Sequence[int | str] | np.ndarray[Any, Any] | str | Path | None


def push_for(
    client: AccountClient,
    console: Console,
    pictures: str | Path | np.ndarray[Any, np.dtype[np.uint8]],
    labels: Labels,
    *,
    account: str | None,
    epsilon: float,
    preparing: dict[str, Any],
) -> Dataset:
    """Prepare pictures, find or open the account that pays, declare a dataset and send them.

    Nothing is opened or declared before the pictures are known to be good, and what is declared was stated before.

    Raises:
        ChoiceNeeded, PackingError: As `datasets.push`; nothing was done.
        NoSuchName: There is no such account.
        RequestError: The service refused the account, the declaration or the content.
    """
    facts = dict(preparing)
    choices = {name: facts.pop(name) for name in Wishes.__annotations__ if name in facts}
    if isinstance(pictures, np.ndarray):
        if labels is None or isinstance(labels, str | Path):
            raise PackingError("Images in memory need labels, one for each: train(images, labels, epsilon=...).")
        place: Path | Arrays = Arrays(pictures, labels, facts.pop("subjects", None))
    else:
        place, choices["labels"] = Path(pictures), labels
    name, at_most, subjects_at_most = (facts.pop(fact, None) for fact in ("name", "at_most", "subjects_at_most"))
    payer = client.find_account(account) if account is not None else account_for(client, name or default_name(place))
    by_subject = subjects_at_most is not None if payer is None else payer.unit == "subject"
    require_statements(at_most, subjects_at_most, private=True, by_subject=by_subject)
    free_name = client.datasets.free_name(payer.id if payer else None, name, place)
    with preparation_progress(console) as watch:
        package = prepare(place, read_choices(**choices), subjects=by_subject, on_picture=watch.on_picture)
        package.require_within(at_most, subjects_at_most)
        if payer is None:
            terms: dict[str, Any] = {"epsilon": epsilon, "delta": usual_delta(at_most)}
            unit = Unit.SUBJECT if by_subject else Unit.RECORD
            payer = open_account(client, name or default_name(place), **terms, unit=unit)
        bounds = {"at_most": at_most, "subjects_at_most": subjects_at_most}
        facts = {"say": partial(console.print, soft_wrap=True)} | bounds | facts
        dataset = client.datasets.declare(package, name=free_name, account_id=payer.id, **facts)
        return client.datasets.send(dataset, package, watch.on_bytes)


def account_for(client: AccountClient, name: str) -> Account | None:
    """Return the account that pays for a dataset where none is named, the first with the dataset's name; or None.

    Pictures that were sent before go on costing the account that they belong to, whatever they are called now.
    """
    return next((account for account in client.accounts() if account.name == name), None)


def open_account(
    client: AccountClient, name: str, *, epsilon: float, delta: float, unit: Unit = Unit.RECORD
) -> Account:
    """Open an account for one dataset: its records, or its subjects with all of theirs, are protected by `epsilon`."""
    return client.create_account(name=name, owner="owner", epsilon=epsilon, delta=delta, unit=unit.value)


def usual_delta(at_most: int) -> float:
    """The largest power of ten below a tenth of one in the stated number of records."""
    return float(10.0 ** -(math.floor(math.log10(10 * at_most)) + 1))
