"""Numbers as people read them. Rounding never flatters: what is spent rounds up, what is left rounds down."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

from privacy.units import UNIT_WORDS
from service.db.words import (
    Adjacency,
    AdminRequestState,
    Admission,
    EarlyEnd,
    EntryKind,
    FailureCode,
    FilterName,
    HoldState,
    JobState,
    LimitRequestState,
    Unit,
)
from service.errors import show_epsilon

JOB_STATES = {
    JobState.QUEUED: "Queued",
    JobState.RUNNING: "Running",
    JobState.SUCCEEDED: "Succeeded",
    JobState.FAILED: "Failed",
    JobState.CANCELLED: "Cancelled",
}
FAILURES = {
    FailureCode.TRAINING_FAILED: "The training failed, and had nothing that could be published.",
    FailureCode.EVALUATION_FAILED: "The evaluation failed. The release is as it was; ask for another one.",
    FailureCode.SAMPLING_FAILED: "The sampling failed.",
    FailureCode.DATASET_UNAVAILABLE: "The dataset could not be opened.",
    FailureCode.RELEASE_UNAVAILABLE: "The release could not be opened.",
    FailureCode.HOLD_EXHAUSTED: "The reserved budget was used up before there was anything to publish.",
    FailureCode.OUT_OF_MEMORY: "The worker ran out of memory.",
    FailureCode.OUT_OF_DISK: "The worker ran out of disk space.",
    FailureCode.TIME_LIMIT: "The job took longer than it may, and had nothing that could be published.",
    FailureCode.WORKER_LOST: "The worker was lost, and so were its repeats; nothing could be published.",
    FailureCode.LEDGER_UNAVAILABLE: "The ledger could not be reached.",
    FailureCode.INTERNAL: "Something broke on our side. The operator's log says more.",
}
EARLY_ENDS = {
    EarlyEnd.CANCELLED: "it was cancelled",
    EarlyEnd.DISCARDED: "it was discarded",
    EarlyEnd.TIME_LIMIT: "its time was over",
    EarlyEnd.WORKER_LOST: "its workers were lost",
    EarlyEnd.TRAINING_FAILED: "it failed",
    EarlyEnd.OUT_OF_MEMORY: "memory ran out",
    EarlyEnd.OUT_OF_DISK: "disk space ran out",
}
ENTRIES = {
    EntryKind.OPEN: "Account opened",
    EntryKind.HOLD: "Held for a job",
    EntryKind.ARM: "Data opened",
    EntryKind.CHARGE: "Charged ahead",
    EntryKind.CAPTURE: "Spent",
    EntryKind.RELEASE: "Given back",
    EntryKind.SAMPLE: "Sampled again, free",
    EntryKind.LIMIT: "Limit changed",
    EntryKind.FREEZE: "Frozen or opened",
    EntryKind.FACT: "Written down",
}
HOLDS = {
    HoldState.HELD: "Held, data not opened yet",
    HoldState.ARMED: "Held, data in use",
    HoldState.CAPTURED: "Spent",
    HoldState.RELEASED: "Given back",
}
RECIPE_TITLES = {
    "class_histogram": "Count the classes",
    "dp_classifier": "Train a classifier",
    "dp_diffusion": "Train a diffusion model",
    "dpgan": "Train a GAN",
}
REQUESTS = {
    LimitRequestState.PENDING: "Waits for a second admin",
    LimitRequestState.APPROVED: "Approved",
    LimitRequestState.DECLINED: "Declined",
}
ADMISSIONS = {
    Admission.MACHINE: "by the operator of the machine",
    Admission.ALONE: "as the second",
    Admission.APPROVED: "by two",
}
ADMIN_REQUESTS = {
    AdminRequestState.PENDING: "Waits for another admin",
    AdminRequestState.APPROVED: "Approved",
    AdminRequestState.DECLINED: "Declined",
}
ABBREVIATIONS = frozenset({"mlp", "cnn", "fid", "is"})
UNITS = {unit: UNIT_WORDS[unit.value] for unit in Unit}
ADJACENCIES = {Adjacency.ADD_REMOVE: "add or remove one"}
FILTERS = {FilterName.GDP: "Gaussian (gdp), exact", FilterName.RDP: "Rényi (rdp)"}


def show_sure(sure: float) -> str:
    """Write how sure somebody can become (`privacy.accounting.odds.sure_at_most`), rounded up, and never as 100%."""
    for digits, largest in ((1, 99.9), (2, 99.99)):
        rounded = _rounded(100.0 * sure, digits, up=True)
        if rounded <= largest:
            return f"{rounded:.{digits}f}".removesuffix(".0") + "%"
    return "over 99.99%"


def odds_sentence(sure: float, delta: float, unit: Unit | str) -> str:
    """Say what an account's limit means for somebody who guesses.

    Odds are told of limits alone. What was spent so far is no bound that was fixed beforehand, so it has none.
    """
    used = "a picture was used" if unit == Unit.RECORD else "a person's pictures were used"
    if show_sure(sure).startswith("over"):
        return (
            f"Someone 50% sure that {used} can become all but certain by all that may ever be published: this limit "
            "promises almost nothing."
        )
    return (
        f"Someone 50% sure that {used} can become at most {show_sure(sure)} sure by all that may ever be published, "
        f"except with a chance of {show_delta(delta)}."
    )


def show_delta(delta: float) -> str:
    """Write delta as a chance: '1 in 100,000'. Rounded towards the larger chance."""
    inverse = 1.0 / delta
    if not math.isfinite(inverse):
        return "less than 1 in 10³⁰⁷"
    whole = round(inverse) if math.isclose(inverse, round(inverse), rel_tol=1e-9) else math.floor(inverse)
    return f"1 in {whole:,}"


def show_power(delta: float) -> str:
    """Write delta in scientific form: '10⁻⁵', '2.5 × 10⁻⁶'."""
    digits, exponent = f"{delta:.2e}".split("e")
    power = "10" + str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    digits = digits.rstrip("0").removesuffix(".")
    return power if digits == "1" else f"{digits} × {power}"


def show_percent(fraction: float, *, up: bool) -> str:
    """Write a fraction as a percentage with at most one decimal, rounded up or down."""
    value = _rounded(100.0 * max(fraction, 0.0), 1, up=up)
    return f"{value:.1f}".removesuffix(".0") + "%"


def show_bytes(count: int) -> str:
    """Write a file size in decimal units."""
    size, units = float(count), ["bytes", "kB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size, units = size / 1000, units[1:]
    return f"{size:.0f} {units[0]}" if units[0] == "bytes" else f"{size:.1f} {units[0]}"


def show_time(moment: datetime) -> str:
    """Write a moment in UTC, to the minute."""
    return moment.astimezone(UTC).strftime("%-d %b %Y, %H:%M UTC")


def show_duration(duration: timedelta) -> str:
    """Write a duration in its two largest units."""
    seconds = max(int(duration.total_seconds()), 0)
    parts = [(seconds // 86400, "d"), (seconds // 3600 % 24, "h"), (seconds // 60 % 60, "min"), (seconds % 60, "s")]
    while len(parts) > 1 and parts[0][0] == 0:
        parts.pop(0)
    return " ".join(f"{count} {unit}" for count, unit in parts[:2] if count or unit == parts[0][1])


def show_number(value: object) -> str:
    """Write a public number of a plan, or a short text, as it is."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e6 else f"{value:,.0f}"
    if isinstance(value, (list, tuple)):
        return ", ".join(show_number(item) for item in value)
    return str(value)


def show_words(name: object) -> str:
    """Turn an identifier into words: 'warm_start' -> 'Warm start', 'mlp' -> 'MLP'."""
    text = str(name).replace("_", " ").strip()
    return text.upper() if text in ABBREVIATIONS else text[:1].upper() + text[1:]


def show_spent(epsilon: float) -> str:
    """Write an epsilon that was asked for or spent."""
    return show_epsilon(epsilon, up=True)


def show_left(epsilon: float) -> str:
    """Write an epsilon that is left, or a limit."""
    return show_epsilon(epsilon, up=False)


def _rounded(value: float, digits: int, *, up: bool) -> float:
    scaled = value * 10.0**digits
    nearest = round(scaled)
    if math.isclose(scaled, nearest, rel_tol=1e-9, abs_tol=1e-9):
        return float(nearest / 10.0**digits)
    return float((math.ceil(scaled) if up else math.floor(scaled)) / 10.0**digits)
