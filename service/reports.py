"""The report on a release as it is served: the file that was published with it, joined with its evaluations.

The release's files and their hash never change. What was measured since stands in the database, and is put into the
page and the data whenever they are read.

Whoever another project shares the release with reads the report without what tells of that project's account
(docs/departments.md).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from obscura.wire.budgets import UNIT_WORDS
from obscura.wire.schemas import to_the_minute
from obscura.wire.wording import ADJACENCIES
from service.db.job_tables import Evaluation
from service.db.session import SessionFactory, transaction
from service.identity.access import is_own, project_of
from service.jobs import get_release, trained_on
from service.jobs.kinds.evaluate import finished_evaluations
from service.storage.interface import Storage, key_of
from service.wording import open_templates

PAGE, DATA = "report.html", "report.json"
# Where the section goes: in place of the one that says that nothing was measured. Pages of releases from before
# evaluations were jobs of their own have none; there it goes before the technical facts.
_PLACE = re.compile(rb"<!-- usefulness -->.*?<!-- /usefulness -->", re.DOTALL)
_BEFORE = b'<section aria-labelledby="technical">'
# What a report says to other projects, with which its release is shared: what stands on the privacy card, and how the
# training was carried out. Its names and sums of the account, and remarks that are made from these, stay with its own.
_SHARED = {
    "release": ("name", "recipe", "classes", "created_at", "stages", "facts", "incomplete"),
    "guarantee": (
        *("epsilon", "delta", "unit", "adjacency", "accounting", "rate", "base", "capacity_nano", "price_nano"),
        *("pld_epsilon", "accountant", "assumed_public", "not_covered"),
    ),
    "technical": ("obscura", "python", "torch", "device", "plan (SHA-256)"),
}
_STYLE = re.compile(rb"<style>.*?</style>", re.DOTALL)
_SYNTHETIC = re.compile(rb'<section aria-labelledby="synthetic">.*?</section>', re.DOTALL)


def read_report(storage: Storage, factory: SessionFactory, release_id: str, name: str) -> bytes:
    """Return a release's report as it is now.

    Args:
        name: PAGE or DATA.

    Raises:
        NotFound: no such release, or it has no such file.
    """
    with transaction(factory, read_only=True) as session:
        release = get_release(session, release_id)
        own = is_own(session, project_of(session, release.account_id))
        classes = trained_on(session, release).classes
        evaluations = [_document(row) for row in finished_evaluations(session, release_id)]
    base = storage.read(key_of(release_id), name)
    if own:
        return (_page if name == PAGE else _data)(base, evaluations, classes)
    shown = shared_part(json.loads(storage.read(key_of(release_id), DATA)))
    if name == DATA:
        return _written({**shown, "evaluations": evaluations})
    return _shared_page(base, shown, evaluations, classes)


def shared_part(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a report's data other projects may read, with which its release is shared.

    What an old report does not have is None.
    """
    told = {part: {name: document.get(part, {}).get(name) for name in names} for part, names in _SHARED.items()}
    return told | {"synthetic": document.get("synthetic")}


def _shared_page(
    base: bytes, shown: Mapping[str, Any], evaluations: list[dict[str, Any]], classes: Sequence[str]
) -> bytes:
    """Return the page of a shared release: of the published one the style and the section on synthetic images alone."""
    kept = [found[0].decode() if (found := part.search(base)) else "" for part in (_STYLE, _SYNTHETIC)]
    latest, earlier = _by_age(evaluations)
    page = _template("shared_report.html").render(
        **{part: shown[part] for part in _SHARED},
        style=kept[0],
        synthetic=kept[1],
        latest=latest,
        earlier=earlier,
        classes=classes,
        units=UNIT_WORDS,
        adjacencies=ADJACENCIES,
    )
    return page.encode()


def _data(base: bytes, evaluations: list[dict[str, Any]], _classes: Sequence[str]) -> bytes:
    return _written({**json.loads(base), "evaluations": evaluations})


def _written(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=2, ensure_ascii=False, sort_keys=True) + "\n").encode()


def _page(base: bytes, evaluations: list[dict[str, Any]], classes: Sequence[str]) -> bytes:
    if not evaluations:
        return base
    latest, earlier = _by_age(evaluations)
    section = _template("usefulness.html").render(latest=latest, earlier=earlier, classes=classes).encode()
    joined, places = _PLACE.subn(lambda _: section, base, count=1)
    return joined if places else base.replace(_BEFORE, section + _BEFORE, 1)


def _by_age(evaluations: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the newest evaluation on each dataset, and all others."""
    newest: dict[str, dict[str, Any]] = {}
    for evaluation in evaluations:
        newest.setdefault(evaluation["evaluation"]["dataset_id"], evaluation)
    latest = list(newest.values())
    return latest, [evaluation for evaluation in evaluations if evaluation not in latest]


def _document(evaluation: Evaluation) -> dict[str, Any]:
    """One evaluation as JSON: id, time, accuracies, with what they were measured, and the confusion."""
    assert evaluation.results is not None
    assert evaluation.finished_at is not None
    return {
        "id": evaluation.id,
        "finished_at": to_the_minute(evaluation.finished_at).isoformat(timespec="minutes"),
        **evaluation.results,
        "confusion": evaluation.confusion,
    }


@cache
def _template(name: str) -> jinja2.Template:
    return open_templates(Path(__file__).parent / "templates").get_template(name)
