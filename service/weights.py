"""The model card and the program to download with a released generator.

Both are generated deterministically from the published files on request, so the release's digest never changes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from models.program import write_program
from obscura.wire.formats import LOADER_FILE, MODEL_CARD_FILE
from obscura.wire.words import ReleaseKind
from service.cards import TAGS, folder_names, guarantee, one_line, write_card
from service.db.job_tables import Release
from service.db.session import SessionFactory, transaction
from service.errors import NotFound
from service.identity.access import find
from service.jobs import trained_on
from service.storage.interface import Storage, key_of

_NETWORKS = {
    None: "one Gaussian per class, transformed by a small network",
    "conditional_dcgan": "class-conditional DCGAN",
    "dcgan": "DCGAN",
    "edm": "EDM diffusion model",
}


def read_made(storage: Storage, factory: SessionFactory, release_id: str, name: str) -> bytes:
    """Return the content of MODEL_CARD_FILE or LOADER_FILE for a released generator."""
    with transaction(factory, read_only=True) as session:
        release = find(session, Release, release_id)
        classes = trained_on(session, release).classes
    if release.kind is not ReleaseKind.GENERATOR:
        raise NotFound(f"A {release.kind.value} has no {name}; a generator has.", release_id=release.id)
    description = json.loads(storage.read(key_of(release_id), "generator.json"))
    try:
        if name == MODEL_CARD_FILE:
            return _model_card(release.name, release.card, description, classes).encode()
        return write_program(description.get("network"), classes, folder_names(classes)).encode()
    except (KeyError, ValueError) as error:
        raise NotFound(f"There is no {name} for this release: {error}.") from None


def _model_card(title: str, card: Mapping[str, Any], description: Mapping[str, Any], classes: Sequence[str]) -> str:
    config, network = description["config"], description.get("network")
    front = {
        "model_name": title,
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
        "Facts about the whole population that it was trained on are not hidden. Images of a generator that was "
        "trained under a small epsilon may be poor: measure them on public images before you rely on them.",
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
        "The same seed gives the same pixels as in the service that published it, given the same version of torch and "
        "kind of processor.",
        "",
        "## Classes",
        "",
        "| label | class |",
        "|---|---|",
        *(f"| {label} | {one_line(name)} |" for label, name in enumerate(classes)),
    ]
    return write_card(front, title, lines)
