"""How numbers of a report are written for people. Rounding never flatters: epsilons and odds are rounded up."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import ROUND_CEILING, Decimal


def show_percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f}%"


def show_sure(sure: float) -> str:
    """Write how sure somebody can become (`privacy.accounting.odds.sure_at_most`), rounded up, and never as 100%."""
    percent = Decimal(repr(100 * sure))
    for step, largest in ((Decimal("0.1"), Decimal("99.9")), (Decimal("0.01"), Decimal("99.99"))):
        if (shown := percent.quantize(step, rounding=ROUND_CEILING)) <= largest:
            return f"{shown}%"
    return "over 99.99%"


def show_number(value: object) -> str:
    """Write a public fact for people: thousands separated, four significant digits, small ones as powers of ten."""
    if isinstance(value, Mapping):
        return "; ".join(f"{show_words(str(name)).lower()} {show_number(part)}" for name, part in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(show_number(part) for part in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or (value.is_integer() and abs(value) < 1e15):
        return f"{int(value):,}"
    if 0 < abs(value) < 1e-3:
        mantissa, exponent = f"{value:.3e}".split("e")
        digits = mantissa.rstrip("0").rstrip(".")
        power = f"10{str(int(exponent)).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}"
        return power if digits == "1" else f"{digits} × {power}"
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def show_epsilon(value: float) -> str:
    """Write an epsilon with four significant digits, rounded up: a guarantee is never shown stronger than it is."""
    if value <= 0:
        return "0"
    digits = 3 - math.floor(math.log10(value))
    shown = Decimal(repr(value)).quantize(Decimal(1).scaleb(-digits), rounding=ROUND_CEILING)
    return f"{shown:f}".rstrip("0").rstrip(".") if digits > 0 else f"{shown:f}"


def show_moment(text: str) -> str:
    """Write an ISO 8601 time to the minute, in UTC; anything else as it is."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC") if moment.tzinfo else text


def show_words(name: str) -> str:
    """Turn an identifier into words: images_to_aggregate becomes "Images to aggregate"."""
    text = name.replace("_", " ")
    return text[:1].upper() + text[1:]
