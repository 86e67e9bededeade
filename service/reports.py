"""The report on a release as it is served: the file that was published with it, joined with its evaluations.

The release's files and their hash never change. What was measured since stands in the database, and is put into the
page and the data whenever they are read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from obscura.wire.schemas import to_the_minute
from service.db.job_tables import Evaluation
from service.db.session import SessionFactory, transaction
from service.jobs import get_own_release, trained_on
from service.jobs.kinds.evaluate import finished_evaluations
from service.storage.interface import Storage, key_of
from service.wording import open_templates

PAGE, DATA = "report.html", "report.json"
# Where the section goes: in place of the one that says that nothing was measured. Pages of releases from before
# evaluations were jobs of their own have none; there it goes before the technical facts.
_PLACE = re.compile(rb"<!-- usefulness -->.*?<!-- /usefulness -->", re.DOTALL)
_BEFORE = b'<section aria-labelledby="technical">'


def read_report(storage: Storage, factory: SessionFactory, release_id: str, name: str) -> bytes:
    """Return a release's report as it is now.

    Args:
        name: PAGE or DATA.

    Raises:
        NotFound: no such release, or it has no such file, or another project shares it: reports tell of the account.
    """
    with transaction(factory, read_only=True) as session:
        release = get_own_release(session, release_id)
        classes = trained_on(session, release).classes
        evaluations = [_document(row) for row in finished_evaluations(session, release_id)]
    base = storage.read(key_of(release_id), name)
    return (_page if name == PAGE else _data)(base, evaluations, classes)


def _data(base: bytes, evaluations: list[dict[str, Any]], _classes: Sequence[str]) -> bytes:
    document = {**json.loads(base), "evaluations": evaluations}
    return (json.dumps(document, indent=2, ensure_ascii=False, sort_keys=True) + "\n").encode()


def _page(base: bytes, evaluations: list[dict[str, Any]], classes: Sequence[str]) -> bytes:
    if not evaluations:
        return base
    newest: dict[str, dict[str, Any]] = {}
    for evaluation in evaluations:
        newest.setdefault(evaluation["evaluation"]["dataset_id"], evaluation)
    latest = list(newest.values())
    section = (
        _template()
        .render(
            latest=latest,
            earlier=[evaluation for evaluation in evaluations if evaluation not in latest],
            classes=classes,
        )
        .encode()
    )
    joined, places = _PLACE.subn(lambda _: section, base, count=1)
    return joined if places else base.replace(_BEFORE, section + _BEFORE, 1)


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
def _template() -> jinja2.Template:
    return open_templates(Path(__file__).parent / "templates").get_template("usefulness.html")
