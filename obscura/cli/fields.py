"""Fields of records as people read them: the fields of lists and summaries, and a format for each name of a field."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from rich.text import Text

from obscura.wire.budgets import UNIT_WORDS
from obscura.wire.job_schemas import FINAL_STATES
from obscura.wire.schemas import BalanceFacts
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

Names = Mapping[str, str]  # of accounts, datasets and projects, by id
BAR_COLUMNS = 20
LABELS = {"train": "training", "sample": "sampling", "evaluate": "evaluation"}  # for job kinds whose noun differs
STYLES = {
    **dict.fromkeys(("succeeded", "ready", "active", "approved"), "green"),
    **dict.fromkeys(("queued", "running", "receiving", "pending"), "cyan"),
    **dict.fromkeys(("failed", "failing", "cancelled"), "red"),
}
# Columns (see `Output.rows`) of each noun: all are its summary, and the first are its list.
COLUMNS: Mapping[str, Sequence[str]] = {
    noun: columns.split(", ")
    for noun, columns in {
        "account": "name, budget=balance, left=balance.left_epsilon, limit=balance.limit_epsilon, id, "
        "spent=balance.spent_epsilon, reserved=balance.reserved_epsilon, delta, frozen, protects=unit, "
        "attacker=balance.attacker_certainty_max, closed to new data=closed, owner, created_at",
        "dataset": "name, id, state, account_id, visibility, images={width} x {height} x {channels}, "
        "records at most=records_declared, subjects at most=subjects_declared, created_at, "
        "failure=failure_code, classes",
        "evaluation": "id, state, dataset_id, accuracy, balanced=balanced_accuracy, "
        "weakest class=accuracy_by_class, trained on half of the public images=accuracy_real, "
        "frechet=similarity.frechet_distance, recall=similarity.recall, extractor=similarity.extractor, samples, seed, "
        "job_id, finished_at",
        "job": "id, kind, state, dataset_id, recipe, cost=cost_epsilon, charged=progress.charged_epsilon, "
        "progress, release_id, account_id, started_at, finished_at, options, "
        "ended_early, failure=failure.message, blocked=blocked.message",
        "plan": "recipe, requested=epsilon, cost=cost_epsilon, left before=budget.left_epsilon, "
        "left after=budget.left_after_epsilon, affordable=budget.affordable, delta, protects=unit, forecast=facts",
        "privacy card": "summary, epsilon, delta, protects, recipe, incomplete, assumed_public, not_covered",
        "release": "name, id, cost=epsilon, accuracy, balanced=balanced_accuracy, weakest class=accuracy_by_class, "
        "kind, recipe, dataset_id, account_id, completed=incomplete.fraction, delta, protects=unit, "
        "histogram, classes, job_id, created_at",
        "sweep": "name, id, state, dataset_id, recipe, cost=totals.cost_epsilon, spent=totals.spent_epsilon, "
        "best trial=best_job_id, account_id, created_at",
    }.items()
}  # fmt: skip


def next_step(title: str, values: Mapping[str, Any]) -> str:
    """Return a sentence with the command that usually follows a record, or ""."""
    match title, values.get("state"):
        case "account", _:
            account = shlex.quote(values["name"])
            return f"To upload images: obscura datasets push FOLDER --account {account} --at-most 2000"
        case "dataset", "ready" if values["account_id"]:
            return f"To see the cost of a training: obscura plan {shlex.quote(values['name'])} --epsilon 1"
        case ("job", "queued" | "running") | ("sweep", "open"):
            return f"To follow it: obscura {title}s watch {values['id']}"
        case "job", "succeeded" if values["release_id"]:
            return f"To see the release: obscura releases show {values['release_id']}"
        case "release", _:
            return f"To see it in a browser: obscura open {values['id']}"
    return ""


def show_field(path: str, row: Mapping[str, Any], names: Names, *, whole: bool = False) -> Text:
    """Format the field of `row` at a path such as `balance.left_epsilon`, by its name, or a text with fields.

    Shows names instead of ids, percentages, epsilons, and colours of states. `whole` adds ids to names, and shows long
    lists and mappings as one line per item.
    """
    if "{" in path:
        return Text(path.format_map(row))
    name, value = path, cast("Any", row)
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    if value is None or (name == "progress" and row["state"] in FINAL_STATES):
        return Text("-", "dim")
    if name in _FORMATS:
        shown = _FORMATS[name](value)
        return shown if isinstance(shown, Text) else Text(visible(shown))
    if name.endswith("_nano") and "capacity_nano" in row:
        return Text(show_percent(value / row["capacity_nano"], 2))
    if "epsilon" in name and isinstance(value, float | int):
        return Text(f"ε {show_epsilon(value, up=not name.startswith(('left', 'limit', 'affordable')))}")
    if name.endswith("_at"):
        return Text(show_time(value))
    if isinstance(value, str) and (name == "id" or name.endswith("_id")):
        alone = value in names and list(names.values()).count(names[value]) == 1
        identity = visible(value) if value not in names else "" if alone and not whole else f"  {visible(value)}"
        return Text(visible(names.get(value, ""))).append(identity, "dim")
    if whole and isinstance(value, dict) and len(value) > 1:
        return Text("\n".join(visible(f"{show_words(key).lower()}: {_plain(item)}") for key, item in value.items()))
    if whole and isinstance(value, list) and any(len(str(item)) > BAR_COLUMNS for item in value):
        return Text("\n".join(f"• {visible(_plain(item))}" for item in value))
    return Text(visible(_plain(value)))


def _budget_bar(balance: Mapping[str, Any]) -> Text:
    facts = BalanceFacts.model_validate(balance)
    spent = min(-int(-facts.spent_fraction * BAR_COLUMNS // 1), BAR_COLUMNS)  # rounded up
    reserved = min(-int(-facts.reserved_fraction * BAR_COLUMNS // 1), BAR_COLUMNS - spent)
    bar = Text().append("█" * spent, "red").append("▒" * reserved, "yellow")
    bar.append("░" * (BAR_COLUMNS - spent - reserved), "green")
    return bar.append(f" {show_percent(facts.left_fraction, 0, up=False)} left")


def _percent(value: Mapping[str, float] | float) -> str:
    if isinstance(value, Mapping):  # by classifier
        value = value.get("cnn", value.get("classifier", 0.0))
    return show_percent(value)


def _progress(facts: Mapping[str, Any]) -> str:
    steps = f" {facts['step']:,} of {facts['steps']:,}" if facts["steps"] else ""
    return f"{show_words(facts['stage']).lower()}{steps}" if facts["stage"] else "-"


def _weakest(by_class: Mapping[str, float]) -> str:
    weakest = min(by_class, key=by_class.__getitem__)
    return f"{weakest} ({_percent(by_class[weakest])})"


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={_plain(item)}" for name, item in value.items())
    if isinstance(value, list):
        return ", ".join(_plain(item) for item in value)
    return show_number(value) if isinstance(value, bool | float) else str(value)  # seeds are copied


_FORMATS: Mapping[str, Callable[[Any], str | Text]] = {
    **dict.fromkeys(("accuracy", "accuracy_real", "balanced_accuracy", "recall"), _percent),
    "accuracy_by_class": _weakest,
    "attacker_certainty_max": lambda sure: f"at most {show_sure(sure)} sure of anyone's presence, if 50% sure before",
    "balance": _budget_bar,
    "delta": lambda delta: f"{show_power(delta)} ({show_delta(delta)})",
    "fraction": lambda fraction: show_percent(fraction, up=False),
    "ended_early": lambda reason: EARLY_ENDS.get(reason, reason),
    "kind": lambda kind: LABELS.get(kind, kind),
    "progress": _progress,
    "state": lambda state: Text(visible(state), STYLES.get(state, "")),
    "unit": lambda unit: UNIT_WORDS.get(unit, unit),
}
