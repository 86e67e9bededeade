"""The report on a release: its published facts and images, and later evaluations, rendered when it is read.

Projects that a release is shared with get a report without facts about the account (docs/how-to/share-a-release.md).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from obscura.wire.budgets import UNIT_WORDS
from obscura.wire.schemas import to_the_minute
from obscura.wire.wording import ADJACENCIES, EARLY_ENDS, show_percent
from privacy.plans.moments import VISIBLE
from service.db.job_tables import Release
from service.db.session import SessionFactory, transaction
from service.identity.access import find, is_own, project_of
from service.jobs import trained_on
from service.jobs.kinds.evaluate import finished_evaluations
from service.storage.interface import Storage, key_of
from service.wording import RECIPE_TITLES, open_templates

EPSILON_WEAK = 10
PAGE, DATA = "report.html", "report.json"
_TEMPLATES = open_templates(Path(__file__).parent / "templates")
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


def read_report(storage: Storage, factory: SessionFactory, release_id: str, name: str, url: str = "") -> bytes:
    """Return the current report of a release: PAGE or DATA. The page links to the documentation at `url`."""
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
    document = json.loads(storage.read(key_of(release_id), DATA))
    pictures = document.pop("pictures", {})
    document = document if own else shared_part(document)
    if name == PAGE:
        return render_page(document, pictures, evaluations, classes, url)
    joined = {**document, "evaluations": evaluations}
    return (json.dumps(joined, indent=2, ensure_ascii=False, sort_keys=True) + "\n").encode()


def shared_part(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a report's data that other projects may read. Missing facts are None."""
    shown = {part: {name: document.get(part, {}).get(name) for name in names} for part, names in _SHARED.items()}
    return shown | {"synthetic": document.get("synthetic")}


def render_page(
    document: Mapping[str, Any],
    pictures: Mapping[str, Any],
    evaluations: Sequence[Mapping[str, Any]],
    classes: Sequence[str],
    url: str = "",
) -> bytes:
    """Return the report as a page, with evaluations newest first.

    pictures: PNG images as data URIs: the `first` images, and a strip and a mean of each of the `classes`.
    """
    newest: dict[str, Mapping[str, Any]] = {}
    for evaluation in evaluations:
        newest.setdefault(evaluation["evaluation"]["dataset_id"], evaluation)
    latest = list(newest.values())
    measured = _verdict(latest[0]) if latest else {}
    page = _TEMPLATES.get_template("report.html").render(
        **document,
        pictures=pictures,
        latest=latest,
        earlier=[evaluation for evaluation in evaluations if evaluation not in latest],
        classes=classes,
        measured=measured,
        advice=_advice(document, measured),
        adjacencies=ADJACENCIES,
        early_words=EARLY_ENDS,
        recipes=RECIPE_TITLES,
        units=UNIT_WORDS,
        visible=VISIBLE,
        url=url,
    )
    return page.encode()


def _verdict(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    kind = "cnn" if "cnn" in evaluation["accuracy"] else next(iter(evaluation["accuracy"]))
    balanced = (evaluation.get("balanced_accuracy") or {}) if evaluation["evaluation"].get("uneven_classes") else {}
    by_class = evaluation.get("accuracy_by_class") or {}
    weakest = min(by_class, key=by_class.__getitem__, default=None)
    return {
        "accuracy": balanced.get(kind, evaluation["accuracy"][kind]),
        "title": "Balanced accuracy" if kind in balanced else "Accuracy",
        "real": None if kind in balanced else evaluation.get("accuracy_real"),
        "weakest": weakest,
        "weakest_accuracy": by_class.get(weakest),
        "dataset": evaluation["evaluation"]["dataset"],
    }


def _advice(document: Mapping[str, Any], measured: Mapping[str, Any]) -> dict[str, list[str]]:
    release, unit = document["release"], document["guarantee"]["unit"]
    share, collapsed = (release["facts"] or {}).get("fraction_above_noise"), document["synthetic"]["collapsed"]
    do = ["Share the images and the generator. Generating more images costs no budget."]
    if document["guarantee"]["epsilon"] > EPSILON_WEAK:
        do = [f"Share the release only with people you trust: an ε above {EPSILON_WEAK} is a weak guarantee."]
    dont = ["Make decisions about a person from these images: they show classes, not people."]
    if not measured:
        do.append("Evaluate the release on public images before you rely on it. An evaluation costs no budget.")
    elif measured["real"] is None or measured["accuracy"] >= 0.9 * measured["real"]:
        do.append("Train and test programs on these images, and confirm results on real images.")
    else:
        do.append("Develop and test programs with these images. Train final classifiers on real images.")
    do.append("State ε, δ and the protected unit when you publish results.")
    if share is not None and share < VISIBLE:
        dont.append("Expect recognisable images: most of what distinguishes the classes is lost in the noise.")
    if release["incomplete"]:
        part = show_percent(release["incomplete"]["fraction"], up=False)
        dont.append(f"Compare it with complete releases: it contains {part} of the planned training.")
    if collapsed:
        dont.append(f"Train on {', '.join(collapsed)} alone: the images of this class are too similar.")
    if measured.get("weakest") is not None and measured["weakest_accuracy"] < 0.5:
        right = show_percent(measured["weakest_accuracy"], 0, up=False)
        dont.append(f"Rely on the class {measured['weakest']}: only {right} of its real images are recognised.")
    dont.append("Study rare traits or small groups: noise removes them first.")
    if unit == "record":
        dont.append("Assume that a person with several images has this protection: it covers one record.")
    return {"do": do, "dont": dont}
