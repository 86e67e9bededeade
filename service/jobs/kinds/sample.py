"""Samples: synthetic images generated from a release. They cost nothing and may be repeated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy.orm import Session

from obscura.wire.release_schemas import SampleRecord, SampleRequest
from obscura.wire.schemas import record_of
from obscura.wire.texts import AS_STATED, checked_class_fractions, read_class_fractions
from obscura.wire.words import ReleaseKind, SampleFormat
from service.db.base import new_id
from service.db.job_tables import FailureCode, Job, Release, Sample
from service.errors import Conflict, InvalidInput
from service.identity.access import find
from service.jobs.kind import Ask, Kind, Order, Reading, failure_of
from service.jobs.releases import payer_of, trained_on, training_of
from service.jobs.submission import new_job, queue_job, require_drawable


def accept(
    session: Session,
    ask: Ask,
    *,
    release_id: str,
    count: int,
    classes: Sequence[str] | None,
    seed: int,
    format: str,
    proportions: Mapping[str, float] | str | None = None,
) -> Job:
    """Accept a request for synthetic images from a release."""
    release = find(session, Release, release_id)
    require_drawable("count", count, ask.samples_max, seed)
    if format not in set(SampleFormat):
        raise InvalidInput(f"format must be one of {', '.join(SampleFormat)}.")
    if release.kind is not ReleaseKind.GENERATOR:
        raise Conflict(
            f"Release '{release.name}' is a {release.kind.value}, not a generator: it cannot generate images. GET "
            f"/v1/releases/{release.id} shows it.",
            release_id=release.id,
            kind=release.kind.value,
        )
    known = trained_on(session, release).classes
    if classes is not None and (not classes or len(set(classes)) != len(classes) or not set(classes) <= set(known)):
        raise InvalidInput(f"classes must be different names of this list: {', '.join(known)}.")
    if proportions is not None:
        proportions = _checked(session, release, proportions, classes, known)
    names = None if classes is None else list(classes)
    drawn: dict[str, Any] = {"count": count, "classes": names, "seed": seed, "format": format}
    drawn |= {} if proportions is None else {"proportions": proportions}
    job = new_job(
        ask,
        KIND.name,
        recipe=training_of(session, release).recipe,
        options=drawn,
        release_id=release.id,
        **payer_of(session, release),
    )
    drawn["format"] = SampleFormat(format)
    made = Sample(id=new_id("smp"), job_id=job.id, release_id=release.id, created_at=ask.now, **drawn)
    return queue_job(session, job, made)


def _checked(
    session: Session,
    release: Release,
    proportions: Mapping[str, float] | str,
    classes: Sequence[str] | None,
    known: Sequence[str],
) -> Mapping[str, float]:
    if classes is not None:
        raise InvalidInput("Give classes or proportions, not both: proportions name the classes that are generated.")
    try:
        if isinstance(proportions, str):
            stated = training_of(session, release).plan.get("config", {}).get("class_fractions")
            if proportions != AS_STATED or not stated:
                raise InvalidInput(
                    f"The training of release '{release.name}' stated no class fractions: state the proportions."
                )
            return read_class_fractions(stated, known)
        return checked_class_fractions(proportions, known, every=False)
    except ValueError as error:
        raise InvalidInput(f"These proportions are invalid: {error}.") from None


def show(made: Sample, job: Any) -> SampleRecord:
    return record_of(SampleRecord, made, state=job.state, failure=failure_of(job))


KIND = Kind(
    name="sample",
    many="samplings",
    title=lambda _job, made: f"Generate {made.count:,} images" if made else "Generate images",
    accept=accept,
    failed=FailureCode.SAMPLING_FAILED,
    unavailable=FailureCode.RELEASE_UNAVAILABLE,
    order=Order(
        path="/v1/releases/{release_id}/samples",
        tag="releases",
        summary="Generate synthetic images",
        description="Generate synthetic images with a public seed. It costs nothing.",
        request=SampleRequest,
    ),
    makes=Sample,
    same="sha256",
    reading=Reading(
        path="/v1/samples",
        prefix="smp",
        tag="samples",
        description="Read a sample: its state, and its SHA-256 and size once it is ready.",
        scope="releases",
    ),
    record=SampleRecord,
    show=show,
)
