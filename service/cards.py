"""Cards for Hugging Face (Markdown with a YAML header), and class names for cards and folders."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from obscura.wire.budgets import UNIT_WORDS

# Reserved names on Windows.
_DEVICES = frozenset({"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))})
TAGS = ("synthetic", "differential-privacy")


def write_card(front: Mapping[str, Any], title: str, lines: Sequence[str]) -> str:
    """Return a card: a YAML header with values in JSON, a heading, and lines of Markdown."""
    header = (f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in front.items())
    return "\n".join(["---", *header, "---", f"# {one_line(title)}", "", *lines]) + "\n"


def guarantee(card: Mapping[str, Any]) -> list[str]:
    """Return the section with the guarantee of a privacy card: epsilon, delta, unit and adjacency."""
    epsilon, delta, unit = card.get("epsilon"), card.get("delta"), UNIT_WORDS[card.get("unit", "record")]
    lines = [
        "## Guarantee",
        "",
        f"The generator is ({epsilon}, {delta})-differentially private: adding or removing {unit} of the training "
        f"data changes the probability of every outcome by a factor of at most exp({epsilon}), except with probability "
        f"about {delta}. Drawing more images from it costs nothing. `privacy_card.json` contains the full "
        "statement: its inputs, the facts assumed to be public, and its limitations.",
        "",
        "| epsilon | delta | unit | adjacency |",
        "|---|---|---|---|",
        f"| {epsilon} | {delta} | {card.get('unit', 'record')} | {card.get('adjacency', 'add_remove')} |",
        "",
    ]
    incomplete = card.get("incomplete")
    if incomplete:
        made, planned = incomplete["made"], incomplete["planned"]
        lines += [f"Its training ended early: {made} of {planned} planned releases were made.", ""]
    return lines


def class_label(names: Sequence[str]) -> dict[str, Any]:
    """Return the type of the label column for the header of a dataset card: `ClassLabel` with the names."""
    return {"class_label": {"names": {str(label): name for label, name in enumerate(names)}}}


def one_line(text: str) -> str:
    """Return text in one line, with Markdown and HTML escaped."""
    printable = "".join(character if character.isprintable() else " " for character in text)
    escaped = "".join(f"\\{character}" if character in "|<>`[]\\" else character for character in printable)
    return " ".join(escaped.split())


def folder_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return distinct, safe folder names whose alphabetical order is the label order, which torchvision expects.

    Suitable names do not change ("0", "1", ...). Otherwise every name gets its label as a prefix: "T-shirt/top"
    becomes "0_T-shirt_top", and the Windows device name "con" becomes "0_con".
    """
    plain = []
    for name in names:
        letters = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
        plain.append(re.sub(r"[^A-Za-z0-9-]+", "_", letters).strip("_-")[:64] or "class")
    distinct = {name.lower() for name in plain}
    if plain == sorted(plain) and len(distinct) == len(plain) and not distinct & _DEVICES:
        return tuple(plain)
    digits = len(str(len(names) - 1))
    return tuple(f"{label:0{digits}d}_{name}" for label, name in enumerate(plain))
