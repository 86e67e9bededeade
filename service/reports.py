"""The report on a release: its published facts and images, and later evaluations, rendered when it is read.

Projects that a release is shared with get a report without facts about the account (docs/how-to/share-a-release.md).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from obscura.wire.budgets import UNIT_WORDS
from obscura.wire.schemas import to_the_minute
from obscura.wire.wording import ADJACENCIES, EARLY_ENDS, show_percent
from obscura.wire.words import EntryKind
from privacy.accounting.filter import attacker_certainty_max
from privacy.plans.moments import VISIBLE
from service import ledger
from service.db.job_tables import Job, Release
from service.db.session import SessionFactory, transaction
from service.errors import LedgerCorruption
from service.identity.access import find, is_own, project_of
from service.jobs.kinds.evaluate import finished_evaluations
from service.jobs.releases import trained_on, training_of
from service.storage.interface import Storage, key_of
from service.wording import RECIPE_TITLES, open_templates

EPSILON_WEAK = 10
REFERENCE_IMAGES_MIN = 1000  # for training a CNN on real images; with fewer, its accuracy is no ceiling
PAGE, DATA = "report.html", "report.json"
_TEMPLATES = open_templates(Path(__file__).parent / "templates")
# The part of a shared release's report for other projects, beside the privacy card: how the training was carried out.
# The account's names and amounts, and notes derived from them, are only for its own project.
_SHARED = {
    "release": ("name", "recipe", "classes", "created_at", "stages", "facts", "incomplete"),
    "technical": ("obscura", "python", "torch", "device", "plan (SHA-256)"),
}


def read_report(storage: Storage, factory: SessionFactory, release_id: str, name: str, url: str = "") -> bytes:
    """Return the current report of a release: PAGE or DATA. The page links to the documentation at `url`."""
    with transaction(factory, read_only=True) as session:
        release = find(session, Release, release_id)
        own = is_own(session, project_of(session, release.account_id))
        of_account = _account_facts(session, training_of(session, release)) if own else {}
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
    document["release"] |= of_account
    document["guarantee"] = guarantee_of(release.card)
    if name == PAGE:
        return render_page(document, pictures, evaluations, classes, url)
    joined = {**document, "evaluations": evaluations}
    return (json.dumps(joined, indent=2, ensure_ascii=False, sort_keys=True) + "\n").encode()


def _account_facts(session: Session, training: Job) -> dict[str, Any]:
    """Return the limit and spending of the account when it paid for a release; nothing if they contradict the log."""
    try:
        capture = ledger.entry_of_hold(session, str(training.hold_id), EntryKind.CAPTURE)
        privacy_filter = ledger.filter_of_hold(session, str(training.hold_id), EntryKind.CAPTURE)
    except LedgerCorruption:
        return {}
    nano = max(capture.capacity_nano, capture.spent_nano + capture.reserved_nano)
    return {
        "account_epsilon": max(privacy_filter.epsilon, privacy_filter.epsilon_of(nano)),
        "account_attacker_certainty_max": attacker_certainty_max(privacy_filter, nano),
        "account_nano": nano,
        "account_spent_nano": capture.spent_nano,
    }


def guarantee_of(card: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of a privacy card that a report states."""
    named, accounting = ("epsilon", "delta", "unit", "adjacency", "assumed_public", "not_covered"), card["accounting"]
    amounts = ("rate", "base", "capacity_nano", "cost_nano", "pld_epsilon", "accountant")
    facts = {name: card[name] for name in named} | {name: accounting.get(name) for name in amounts}
    return facts | {"accounting": accounting["method"]}


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
        reference_of=reference_of,
        advice=_advice(document, measured),
        adjacencies=ADJACENCIES,
        early_words=EARLY_ENDS,
        recipes=RECIPE_TITLES,
        units=UNIT_WORDS,
        visible=VISIBLE,
        url=url,
    )
    return page.encode()


def reference_of(results: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the accuracy of the CNN trained on half of the public images, in words; None if it was not measured.

    The other half tests it. The 95% interval (Wilson) covers the choice of these images. `few` means: do not compare.
    """
    accuracy, evaluation = results.get("accuracy_real"), results.get("evaluation") or {}
    images = evaluation.get("test_images", 0)
    if accuracy is None or images < 2:
        return None
    trained, tested, z = images - images // 2, images // 2, 1.96
    middle = accuracy + z**2 / (2 * tested)
    half = z * math.sqrt(accuracy * (1 - accuracy) / tested + (z / (2 * tested)) ** 2)
    low, high = ((middle + side) / (1 + z**2 / tested) for side in (-half, half))
    few = trained < REFERENCE_IMAGES_MIN
    note = f"tested on {tested:,} others; 95% interval {show_percent(low, up=False)} to {show_percent(high, up=True)}"
    if few:
        note += f". With fewer than {REFERENCE_IMAGES_MIN:,} training images, this is no upper limit"
    return {"accuracy": accuracy, "trained": trained, "note": note, "few": few}


def _verdict(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """Return the accuracy of synthetic images, the comparable `reference` or None, and the weakest class or None."""
    kind = "cnn" if "cnn" in evaluation["accuracy"] else next(iter(evaluation["accuracy"]))
    balanced = (evaluation.get("balanced_accuracy") or {}) if evaluation["evaluation"].get("uneven_classes") else {}
    by_class = evaluation.get("accuracy_by_class") or {}
    weakest = min(by_class, key=by_class.__getitem__, default=None)
    reference = reference_of(evaluation)
    return {
        "accuracy": balanced.get(kind, evaluation["accuracy"][kind]),
        "title": "Balanced accuracy" if kind in balanced else "Accuracy",
        "real": None if kind in balanced or reference is None or reference["few"] else reference,
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
    elif measured["real"] is None or measured["accuracy"] >= 0.9 * measured["real"]["accuracy"]:
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
