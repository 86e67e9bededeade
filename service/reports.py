"""The report on a release: the file published with it, combined with later evaluations when it is read.

The release's files and their hash never change. Projects that a release is shared with get a report without facts
about the account (docs/how-to/share-a-release.md).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from obscura.wire.budgets import UNIT_WORDS
from obscura.wire.schemas import to_the_minute
from obscura.wire.wording import ADJACENCIES
from service.db.job_tables import Release
from service.db.session import SessionFactory, transaction
from service.identity.access import find, is_own, project_of
from service.jobs import trained_on
from service.jobs.kinds.evaluate import finished_evaluations
from service.storage.interface import Storage, key_of
from service.wording import open_templates

PAGE, DATA = "report.html", "report.json"
_TEMPLATES = open_templates(Path(__file__).parent / "templates")
# The part of the page that evaluations replace.
_USEFULNESS = re.compile(rb"<!-- usefulness -->.*?<!-- /usefulness -->", re.DOTALL)
# The part of a shared release's report for other projects: facts on the privacy card, and facts on how the training was
# carried out. The account's names and amounts, and notes derived from them, are only for its own project.
_SHARED = {
    "release": ("name", "recipe", "classes", "created_at", "stages", "facts", "incomplete"),
    "guarantee": (
        *("epsilon", "delta", "unit", "adjacency", "accounting", "rate", "base", "capacity_nano", "cost_nano"),
        *("pld_epsilon", "accountant", "assumed_public", "not_covered"),
    ),
    "technical": ("obscura", "python", "torch", "device", "plan (SHA-256)"),
}
_STYLE = re.compile(rb"<style>.*?</style>", re.DOTALL)
_SYNTHETIC = re.compile(rb'<section aria-labelledby="synthetic">.*?</section>', re.DOTALL)


def read_report(storage: Storage, factory: SessionFactory, release_id: str, name: str) -> bytes:
    """Return the current report of a release: PAGE or DATA."""
    with transaction(factory, read_only=True) as session:
        release = find(session, Release, release_id)
        own = is_own(session, project_of(session, release.account_id))
        classes = trained_on(session, release).classes
        evaluations = [
            {
                "id": row.id,
                "finished_at": to_the_minute(row.finished_at).isoformat(timespec="minutes"),
                **row.results,
                "confusion": row.confusion,
            }
            for row in finished_evaluations(session, release_id)
            if row.finished_at is not None and row.results is not None
        ]
    published = storage.read(key_of(release_id), name)
    if own and name == PAGE:
        return joined_page(published, evaluations, classes)
    document = json.loads(published if name == DATA else storage.read(key_of(release_id), DATA))
    document = document if own else shared_part(document)
    if name == PAGE:
        return shared_page(published, document, evaluations, classes)
    joined = {**document, "evaluations": evaluations}
    return (json.dumps(joined, indent=2, ensure_ascii=False, sort_keys=True) + "\n").encode()


def joined_page(published: bytes, evaluations: list[dict[str, Any]], classes: Sequence[str]) -> bytes:
    """Return the published page with evaluations made after publication."""
    if not evaluations:
        return published
    latest, earlier = _by_age(evaluations)
    section = (
        _TEMPLATES.get_template("usefulness.html").render(latest=latest, earlier=earlier, classes=classes).encode()
    )
    return _USEFULNESS.sub(lambda _: section, published, count=1)


def shared_part(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a report's data that other projects may read. Missing facts are None."""
    shown = {part: {name: document.get(part, {}).get(name) for name in names} for part, names in _SHARED.items()}
    return shown | {"synthetic": document.get("synthetic")}


def shared_page(
    published: bytes, shown: Mapping[str, Any], evaluations: list[dict[str, Any]], classes: Sequence[str]
) -> bytes:
    """Return the page for other projects. From the published page, it contains only the style and the section on
    synthetic images.
    """
    style, synthetic = (found[0].decode() if (found := part.search(published)) else "" for part in (_STYLE, _SYNTHETIC))
    latest, earlier = _by_age(evaluations)
    page = _TEMPLATES.get_template("shared_report.html").render(
        **{part: shown[part] for part in _SHARED},
        style=style,
        synthetic=synthetic,
        latest=latest,
        earlier=earlier,
        classes=classes,
        units=UNIT_WORDS,
        adjacencies=ADJACENCIES,
    )
    return page.encode()


def _by_age(evaluations: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the newest evaluation on each dataset, and the other evaluations."""
    newest: dict[str, dict[str, Any]] = {}
    for evaluation in evaluations:
        newest.setdefault(evaluation["evaluation"]["dataset_id"], evaluation)
    latest = list(newest.values())
    return latest, [evaluation for evaluation in evaluations if evaluation not in latest]
