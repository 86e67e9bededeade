"""Cards for Hugging Face (Markdown with a YAML header), class names for cards and folders, and the loader program.

The model card and the program of a generator are made deterministically from the published files on request, so the
release's digest never changes.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from models.program import write_program
from obscura.wire.budgets import UNIT_WORDS
from obscura.wire.formats import LOADER_FILE, MANIFEST_FILE, MODEL_CARD_FILE
from obscura.wire.provenance import SIGNATURE_KEYWORD, XMP, XMP_KEYWORD, mark
from obscura.wire.wording import show_epsilon
from obscura.wire.words import ReleaseKind
from service.db.job_tables import Release
from service.db.session import SessionFactory, transaction
from service.errors import NotFound
from service.identity.access import find
from service.jobs import trained_on
from service.storage.interface import Storage, key_of, manifest_of

# Reserved names on Windows.
_DEVICES = frozenset({"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))})
TAGS = ("synthetic", "differential-privacy")
_CARD_ORDER = (
    *("title", "summary", "epsilon", "epsilon_rounded", "delta", "unit", "protects", "adjacency", "recipe"),
    *("incomplete", "assumed_public", "not_covered", "accounting"),
)
_NETWORKS = {
    None: "one Gaussian per class, transformed by a small network",
    "conditional_dcgan": "class-conditional DCGAN",
    "dcgan": "DCGAN",
    "edm": "EDM diffusion model",
}


def write_card(front: Mapping[str, Any], title: str, lines: Sequence[str]) -> str:
    """Return a card: a YAML header with values in JSON, a heading, and lines of Markdown."""
    header = (f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in front.items())
    return "\n".join(["---", *header, "---", f"# {one_line(title)}", "", *lines]) + "\n"


def ordered_card(card: Mapping[str, Any]) -> dict[str, Any]:
    """Return a privacy card with the fields for people first. The database sorts fields by name."""
    return {name: card[name] for name in (*_CARD_ORDER, *sorted(card)) if name in card}


def guarantee(card: Mapping[str, Any]) -> list[str]:
    """Return the section with the guarantee of a privacy card: epsilon (rounded up), delta, unit and adjacency."""
    epsilon, unit = show_epsilon(card["epsilon"], up=True), UNIT_WORDS[card["unit"]]
    delta = f"{card['delta']:g}"
    lines = [
        "## Guarantee",
        "",
        f"The generator is ({epsilon}, {delta})-differentially private: adding or removing {unit} of the training "
        f"data changes the probability of every outcome by a factor of at most exp({epsilon}), except with probability "
        f"about {delta}. Generating more images costs nothing. `privacy_card.json` contains the full "
        "statement: its inputs, the facts assumed to be public, and its limitations.",
        "",
        "| epsilon | delta | unit | adjacency |",
        "|---|---|---|---|",
        f"| {epsilon} | {delta} | {card['unit']} | {card.get('adjacency', 'add_remove')} |",
        "",
    ]
    incomplete = card.get("incomplete")
    if incomplete:
        made, planned = incomplete["made"], incomplete["planned"]
        lines += [f"Its training ended early: {made} of {planned} planned noisy releases were made.", ""]
    return lines


def cite(title: str, release_id: str, card: Mapping[str, Any]) -> list[str]:
    """Return lines with a BibTeX entry, without an author and a year."""
    plain = "".join(character for character in title if character.isprintable() and character not in "{}\\`")
    terms = f"epsilon {show_epsilon(card['epsilon'], up=True)}, delta {card['delta']:g}"
    note = f"Differentially private synthetic data, release {release_id}, {terms}, made with Obscura"
    return ["```bibtex", f"@misc{{{release_id},", f"  title = {{{plain}}},", f"  note = {{{note}}},", "}", "```", ""]


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


def read_made(storage: Storage, factory: SessionFactory, release_id: str, name: str) -> bytes:
    """Return the content of a file in `obscura.wire.formats.MADE`."""
    with transaction(factory, read_only=True) as session:
        release = find(session, Release, release_id)
        classes = trained_on(session, release).classes
    if name == MANIFEST_FILE:
        return manifest_of(storage.open(key_of(release_id)))
    if release.kind is not ReleaseKind.GENERATOR:
        raise NotFound(f"Only generators have {name}; this is a {release.kind.value}.", release_id=release.id)
    description = json.loads(storage.read(key_of(release_id), "generator.json"))
    try:
        if name == MODEL_CARD_FILE:
            return _model_card(release.name, release_id, release.card, description, classes).encode()
        texts = {XMP_KEYWORD: XMP, SIGNATURE_KEYWORD: json.dumps(mark(release_id))}
        return write_program(description.get("network"), classes, folder_names(classes), texts).encode()
    except (KeyError, ValueError) as error:
        raise NotFound(f"There is no {name} for this release: {error}.") from None


def _model_card(
    title: str, release_id: str, card: Mapping[str, Any], description: Mapping[str, Any], classes: Sequence[str]
) -> str:
    config, network = description["config"], description.get("network")
    front = {
        "model_name": title,
        "license": "other",
        "library_name": "pytorch",
        "pipeline_tag": "unconditional-image-generation",
        "tags": list(TAGS),
    }
    colour = "grey" if config["channels"] == 1 else "colour"
    recipe = f", trained by the recipe `{card['recipe']}`" if "recipe" in card else ""
    lines = [
        f"A generator of labelled synthetic images: {_NETWORKS.get(network, network)}{recipe}, "
        f"{config['height']} x {config['width']} pixels, {colour}, {len(classes)} classes.",
        "",
        *guarantee(card),
        *cite(title, release_id, card),
        "The guarantee does not hide facts about the whole population. A generator trained with a small epsilon may "
        "generate poor images: evaluate it on public images before you rely on it.",
        "",
        "## Use",
        "",
        f"`{LOADER_FILE}` needs torch and nothing else:",
        "",
        "```",
        f"python {LOADER_FILE} --count 100 --out images/",
        "```",
        "",
        "```python",
        "from load_generator import CLASSES, draw, load",
        "",
        "for images, labels in draw(load(), count=100, seed=0):  # (b, h, w, c) uint8, and (b,)",
        "    ...",
        "```",
        "",
        f"With the same seed, torch version and kind of processor, `{LOADER_FILE}` gives the same pixels as the "
        "service.",
        "",
        "## Classes",
        "",
        "| label | class |",
        "|---|---|",
        *(f"| {label} | {one_line(name)} |" for label, name in enumerate(classes)),
    ]
    return write_card(front, title, lines)
