"""Format numbers for people, in the same way on pages, in reports, in errors and on the command line.

Rounding is conservative: requested and spent amounts, and odds, are rounded up; remaining and planned amounts, down.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from obscura.wire.budgets import PART_PROPOSED

ABBREVIATIONS: Final = frozenset({"mlp", "cnn", "fid", "is"})
ADJACENCIES: Final[Mapping[str, str]] = {"add_remove": "add or remove one unit"}
# Why a training ended before its plan, as the clause after "because".
EARLY_ENDS: Final[Mapping[str, str]] = {
    "cancelled": "it was cancelled",
    "discarded": "it was discarded",
    "time_limit": "it reached the time limit",
    "worker_lost": "the processes that ran it were lost",
    "training_failed": "it failed",
    "out_of_memory": "memory ran out",
}
# Invisible letters and marks, besides the control and format characters of Unicode.
INVISIBLE: Final = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0")


def visible(text: str, *, lines: bool = False) -> str:
    """Escape control, bidirectional and zero-width characters in untrusted text. `lines` keeps line breaks."""
    if text.isascii() and text.isprintable():
        return text
    kept = "\n" if lines else ""
    return "".join(
        char
        if char in kept or unicodedata.category(char) == "Zs" or (char.isprintable() and char not in INVISIBLE)
        else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def show_epsilon(epsilon: float, *, up: bool | None) -> str:
    """Format an epsilon >= 0 with three significant digits, rounded up (spent), down (remaining) or to nearest."""
    if epsilon <= 0:
        return "0"
    digits = 2 - math.floor(math.log10(epsilon))
    # Converting a three-digit number to nano-units and back lowers it slightly; show the original number.
    shown = _rounded(epsilon, digits, up=up, tolerance=1e-7)
    if digits <= 0:
        return f"{shown:.0f}"
    text = f"{shown:.{digits}f}".rstrip("0")
    return text + "0" if text.endswith(".") else text


def proposed_epsilon(left: float) -> float:
    """Return the epsilon to propose for a training if `left` is left: PART_PROPOSED of it, in three digits."""
    return float(show_epsilon(left * PART_PROPOSED, up=False))


def show_sure(sure: float) -> str:
    """Format a probability (`privacy.accounting.filter.attacker_certainty_max`), rounded up, never as 100%."""
    for digits, largest in ((1, 99.9), (2, 99.99)):
        rounded = _rounded(100.0 * sure, digits, up=True)
        if rounded <= largest:
            return f"{rounded:.{digits}f}".removesuffix(".0") + "%"
    return "over 99.99%"


def show_delta(delta: float) -> str:
    """Format delta as odds, rounded up: '1 in 100,000'."""
    inverse = 1.0 / delta
    if not math.isfinite(inverse):
        return "less than 1 in 10³⁰⁷"
    whole = round(inverse) if math.isclose(inverse, round(inverse), rel_tol=1e-9) else math.floor(inverse)
    return f"1 in {whole:,}"


def show_power(value: float, digits: int = 2) -> str:
    """Format a small number as a power of ten: '10⁻⁵', '2.5 × 10⁻⁶'."""
    mantissa, exponent = f"{value:.{digits}e}".split("e")
    power = "10" + str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    mantissa = mantissa.rstrip("0").removesuffix(".")
    return power if mantissa == "1" else f"{mantissa} × {power}"


def show_percent(fraction: float, digits: int = 1, *, up: bool | None = None) -> str:
    """Format a fraction as a percentage with few decimals. `up` rounds up or down; None rounds to nearest."""
    value = _rounded(100.0 * max(fraction, 0.0), digits, up=up)
    return f"{value:.{digits}f}".removesuffix("." + "0" * digits) + "%"


def show_number(value: object) -> str:
    """Format a value of a plan: a number with four significant digits, several numbers, or a short text."""
    if isinstance(value, Mapping):
        return "; ".join(f"{show_words(name).lower()} {show_number(part)}" for name, part in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(show_number(part) for part in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or (value.is_integer() and abs(value) < 1e15):
        return f"{int(value):,}"
    if 0 < abs(value) < 1e-3:
        return show_power(value, digits=3)
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def show_words(name: object) -> str:
    """Format an identifier as words: 'warm_start' -> 'Warm start', 'mlp' -> 'MLP'."""
    text = str(name).replace("_", " ").strip()
    return text.upper() if text in ABBREVIATIONS else text[:1].upper() + text[1:]


def show_bytes(count: int) -> str:
    """Format a file size in decimal units: 1.3 MB."""
    size, units = float(count), ["bytes", "kB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size, units = size / 1000, units[1:]
    return f"{size:.1f}".removesuffix(".0") + f" {units[0]}"


def show_time(moment: datetime | str) -> str:
    """Format a time, or an ISO 8601 text, in UTC, to the minute."""
    moment = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    return moment.astimezone(UTC).strftime("%-d %b %Y, %H:%M UTC")


def show_duration(duration: timedelta) -> str:
    """Format a duration in its two largest units, in whole minutes."""
    minutes = max(int(duration.total_seconds()) // 60, 0)
    parts = [(minutes // 1440, "d"), (minutes // 60 % 24, "h"), (minutes % 60, "min")]
    while len(parts) > 1 and parts[0][0] == 0:
        parts.pop(0)
    return " ".join(f"{count} {unit}" for count, unit in parts[:2] if count or unit == parts[0][1])


def show_silence(minutes: int) -> str:
    """Return the sentence that a job's worker has not responded for some minutes."""
    return f"no sign of life for {minutes} minute{'s' if minutes > 1 else ''}"


def odds_sentence(sure: float, delta: float, unit: str) -> str:
    """Return a sentence on what an account's limit means against an attacker who guesses.

    Odds are shown for limits only, because spent budget is not a bound that was fixed beforehand.
    """
    used = "an image was used" if unit == "record" else "a person's images were used"
    if show_sure(sure).startswith("over"):
        return (
            f"If an attacker thinks there is a 50% chance that {used}, everything ever published can make them almost "
            "certain: this lifetime epsilon is so large that it protects almost nothing."
        )
    return (
        f"If an attacker thinks there is a 50% chance that {used}, everything ever published can raise that to at most "
        f"{show_sure(sure)}, except with a probability of {show_delta(delta)}."
    )


def values_in_words(schema: Mapping[str, Any]) -> str:
    """Describe the values that an option's JSON Schema accepts: "an integer between 1 and 64"."""
    if "anyOf" in schema:
        return " or ".join(values_in_words(part) for part in schema["anyOf"])
    if "enum" in schema:
        return f"one of {', '.join(schema['enum'])}"
    if "const" in schema:
        return str(schema["const"])
    kind = schema["type"]
    if kind in ("integer", "number"):
        words = "an integer" if kind == "integer" else "a number"
        low, high = (schema.get(bound) for bound in ("minimum", "maximum"))
        written = "{:d}" if kind == "integer" else "{:g}"
        if low is not None and high is not None:
            return f"{words} between {written.format(low)} and {written.format(high)}"
        return words + (f" of at least {low}" if low is not None else f" of at most {high}" if high is not None else "")
    if kind == "string":
        return f"a text of at most {schema['maxLength']} characters" if "maxLength" in schema else "a text"
    return {"boolean": "true or false", "null": "null"}.get(kind, f"JSON of type {kind}")


# Filters, by their names in templates.
FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    "bytes": show_bytes,
    "chance": show_delta,
    "duration": show_duration,
    "epsilon": partial(show_epsilon, up=None),
    "left": partial(show_epsilon, up=False),
    "moment": show_time,
    "number": show_number,
    "percent": show_percent,
    "percent_down": partial(show_percent, up=False),
    "percent_up": partial(show_percent, up=True),
    "power": show_power,
    "spent": partial(show_epsilon, up=True),
    "sure": show_sure,
    "words": show_words,
}


def _rounded(value: float, digits: int, *, up: bool | None, tolerance: float = 1e-9) -> float:
    scaled = value * 10.0**digits
    nearest = round(scaled)
    if up is None or math.isclose(scaled, nearest, rel_tol=tolerance, abs_tol=tolerance):
        return float(nearest / 10.0**digits)
    return float((math.ceil(scaled) if up else math.floor(scaled)) / 10.0**digits)
