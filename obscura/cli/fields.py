"""Fields of records as people read them: which fields a summary shows, and how each is formatted by its name."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel
from rich.text import Text

from obscura.wire.budgets import UNIT_WORDS
from obscura.wire.job_schemas import FINAL_STATES, JobRecord, ProgressFacts, SweepRecord
from obscura.wire.release_schemas import ReleaseRecord
from obscura.wire.schemas import AccountRecord, BalanceFacts, DatasetRecord
from obscura.wire.wording import (
    EARLY_ENDS,
    show_delta,
    show_epsilon,
    show_number,
    show_percent,
    show_power,
    show_sure,
    show_time,
    show_words,
    visible,
)

Names = Mapping[str, str]  # of accounts and datasets, by id
SHOWN_AS_TITLE = ("id", "name")
PROSE_COLUMNS = 100  # widest line of a summary
BAR_COLUMNS = 20
LABELS = {"train": "training", "sample": "sampling", "evaluate": "evaluation"}  # for job kinds whose noun differs
STATE_STYLES = {
    **dict.fromkeys(("succeeded", "ready", "active", "approved", "ended"), "green"),
    **dict.fromkeys(("queued", "running", "receiving", "open", "pending", "declared"), "cyan"),
    **dict.fromkeys(("cancelled", "withdrawing", "deleting", "deleted", "expired", "declined"), "yellow"),
    "failed": "red",
}
# The fields of a summary, as columns (see `Output.rows`); `{name}` inserts a field.
SUMMARIES: Mapping[type[BaseModel], tuple[str, ...]] = {
    AccountRecord: (
        "budget=balance", "left=balance.left_epsilon", "spent=balance.spent_epsilon",
        "reserved=balance.reserved_epsilon", "limit=balance.limit_epsilon", "delta", "protects=unit",
        "attacker=balance.attacker_certainty_max", "frozen", "closed to new data=closed", "owner",
        "created=created_at",
    ),
    DatasetRecord: (
        "state", "failure=failure_code", "account=account_id", "visibility", "images={width} x {height} x {channels}",
        "at most=records_declared", "subjects, at most=subjects_declared", "classes", "created=created_at",
    ),
    JobRecord: (
        "kind", "state", "failure=failure.message", "blocked=blocked.message", "recipe", "dataset=dataset_id",
        "account=account_id", "cost=cost_epsilon", "charged=progress.charged_epsilon", "progress", "options",
        "ended early=ended_early", "release=release_id", "sample=sample_id", "started=started_at",
        "finished=finished_at",
    ),
    ReleaseRecord: (
        "kind", "recipe", "dataset=dataset_id", "account=account_id", "cost=epsilon", "delta", "protects=unit",
        "accuracy", "balanced accuracy=balanced_accuracy", "weakest class=accuracy_by_class",
        "completed=incomplete.fraction", "histogram.counts", "histogram.standard_error", "classes", "job=job_id",
        "created=created_at",
    ),
    SweepRecord: (
        "state", "recipe", "dataset=dataset_id", "account=account_id", "cost=totals.cost_epsilon",
        "spent=totals.spent_epsilon", "best trial=best_job_id", "created=created_at",
    ),
}  # fmt: skip


def summary_of(record: BaseModel | dict[str, Any], values: Mapping[str, Any]) -> tuple[tuple[str, ...], str]:
    """Return the columns of a record's summary, and a sentence with the next command. Empty for other records."""
    kind = next((kind for kind in SUMMARIES if isinstance(record, kind)), None)
    if kind is None:
        return (), ""
    identity, following = values["id"], ""
    if kind is AccountRecord:
        account = shlex.quote(values["name"])
        following = f"To upload images: obscura datasets push FOLDER --account {account} --at-most 2000"
    elif kind is DatasetRecord and values["state"] == "ready" and values["visibility"] == "private":
        following = f"To see the cost of a training: obscura plan {shlex.quote(values['name'])} --epsilon 1"
    elif kind is JobRecord and values["state"] not in FINAL_STATES:
        following = f"To follow it: obscura jobs watch {identity}"
    elif kind is JobRecord and values["release_id"] is not None:
        following = f"To see the release: obscura releases show {values['release_id']}"
    elif kind is ReleaseRecord:
        following = f"To see it in a browser: obscura open {identity}"
    elif kind is SweepRecord and values["state"] == "open":
        following = f"To follow it: obscura sweeps watch {identity}"
    return SUMMARIES[kind], following


def value_at(values: Mapping[str, Any], path: str) -> Any:
    """Return the field at a path such as `balance.left_epsilon`, or a text with fields; None if it is missing."""
    if "{" in path:
        return path.format_map(values)
    value: Any = values
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def show_field(name: str, value: Any, row: Mapping[str, Any], names: Names, *, whole: bool = False) -> Text:
    """Format a field of `row` by its name: names instead of ids, percentages, epsilons, colours of states.

    `whole` adds ids to names, and shows a long list as one line per item.
    """
    if value is None or (name == "progress" and row["state"] in FINAL_STATES):
        return Text("-", "dim")
    if name in _FORMATS:
        shown = _FORMATS[name](value)
        return shown if isinstance(shown, Text) else Text(visible(shown))
    if name.endswith("_nano") and "capacity_nano" in row:
        return Text(show_percent(value / row["capacity_nano"], 2))
    if name.endswith("epsilon") and isinstance(value, float | int):
        return Text(f"ε {show_epsilon(value, up=name not in ('left_epsilon', 'limit_epsilon', 'affordable_epsilon'))}")
    if name.endswith("_at"):
        return Text(show_time(value))
    if isinstance(value, str) and (name == "id" or name.endswith("_id")):
        identity = (visible(value), "dim")
        return Text.assemble(*([visible(names[value]), *(["  ", identity] if whole else [])] if value in names else [identity]))
    if whole and isinstance(value, list) and any(len(str(item)) > BAR_COLUMNS for item in value):
        return Text("\n".join(f"• {visible(_plain(item))}" for item in value))
    return Text(visible(_plain(value)))


def budget_bar(balance: Mapping[str, Any]) -> Text:
    """Draw spent, reserved and remaining budget as a bar, with the remaining percentage."""
    facts = BalanceFacts.model_validate(balance)
    spent = min(-int(-facts.spent_fraction * BAR_COLUMNS // 1), BAR_COLUMNS)  # rounded up
    reserved = min(-int(-facts.reserved_fraction * BAR_COLUMNS // 1), BAR_COLUMNS - spent)
    return Text.assemble(
        ("█" * spent, "red"),
        ("▒" * reserved, "yellow"),
        ("░" * (BAR_COLUMNS - spent - reserved), "green"),
        f" {show_percent(facts.left_fraction, 0, up=False)} left",
    )


def _accuracies(by_classifier: Mapping[str, float] | float) -> str:
    if isinstance(by_classifier, float | int):
        return show_percent(by_classifier, up=False)
    return ", ".join(f"{show_words(name)} {show_percent(each, up=False)}" for name, each in by_classifier.items())


def _progress(values: Mapping[str, Any]) -> str:
    facts = ProgressFacts.model_validate(values)
    steps = f" {facts.step:,} of {facts.steps:,}" if facts.steps else ""
    return f"{show_words(facts.stage).lower()}{steps}" if facts.stage else "-"


def _weakest(by_class: Mapping[str, float]) -> str:
    weakest = min(by_class, key=by_class.__getitem__)
    return f"{weakest} ({show_percent(by_class[weakest], up=False)})"


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={_plain(item)}" for name, item in value.items())
    if isinstance(value, list):
        return ", ".join(_plain(item) for item in value)
    return show_number(value) if isinstance(value, bool | float) else str(value)  # seeds are copied


_FORMATS: Mapping[str, Callable[[Any], str | Text]] = {
    **dict.fromkeys(("accuracy", "balanced_accuracy", "cnn", "recall"), _accuracies),
    "accuracy_by_class": _weakest,
    "attacker_certainty_max": lambda sure: f"at most {show_sure(sure)} sure of anyone's presence, if 50% sure before",
    "balance": budget_bar,
    "delta": lambda delta: f"{show_power(delta)} ({show_delta(delta)})",
    "ended_early": lambda reason: EARLY_ENDS.get(reason, reason),
    "fraction": lambda fraction: show_percent(fraction, up=False),
    "kind": lambda kind: LABELS.get(kind, kind),
    "progress": _progress,
    "state": lambda state: Text(visible(state), STATE_STYLES.get(state, "")),
    "unit": lambda unit: UNIT_WORDS.get(unit, unit),
}
