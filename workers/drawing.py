"""One attempt at a sample job: draw from a released generator, put the file in place, end the job. Costs nothing."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import torch

from models.released import ReleasedGenerator, load_released
from service import artifacts, jobs
from service.db.dataset_tables import Dataset
from service.db.job_tables import Release, Sample
from service.db.session import transaction
from service.db.words import SampleFormat
from service.errors import NotFound
from service.failpoints import failpoint
from workers.context import Context
from workers.sampling import SampleRequest, write_sample
from workers.spending import ReportedProgress
from workers.time_left import Piece

STAGE = "sample"
_SUFFIXES = {SampleFormat.IMAGEFOLDER: "zip", SampleFormat.NPZ: "npz"}


def run_sampling(context: Context, job_id: str) -> None:
    """Write the file of a sample job and end the job.

    An attempt that was lost after the file was in place left the same bytes that this one would write: they are kept.

    Raises:
        Cancelled: the attempt was told to stop.
        StaleAttempt: another attempt has taken over.
        NotFound: the release's files are gone.
    """
    data_dir = context.settings.data_dir
    with transaction(context.factory, read_only=True) as session:
        sample = jobs.sample_of(session, job_id)
        release = jobs.get_release(session, sample.release_id)
        names = tuple(session.get_one(Dataset, release.dataset_id).classes)
    directory = artifacts.directory_of(data_dir, sample.id)
    path = directory / f"{sample.id}.{_SUFFIXES[sample.format]}"
    if not path.is_file():
        progress = ReportedProgress(
            context.factory,
            context.attempt,
            stop=context.stop,
            work=[Piece(STAGE, sample.count, 1.0)],
        )

        def tell(drawn: int) -> None:
            progress(stage=STAGE, step=drawn, steps=sample.count)

        generator = _load(data_dir, release)
        # On the CPU and on one thread, so that additions keep their order and equal seeds give equal bytes.
        torch.set_num_threads(1)
        with artifacts.staged_directory(data_dir, sample.id) as staging:
            write_sample(
                staging / path.name,
                generator=generator,
                request=request_of(sample, names),
                sample_format=sample.format.value,
                title=release.name,
                card=release.card,
                on_drawn=tell,
            )
            failpoint("sample.before")
            artifacts.publish_directory(staging, directory)
            failpoint("sample.after")
    with transaction(context.factory) as session:
        jobs.finish_sample(
            session,
            job_id=job_id,
            attempt=context.attempt.number,
            path=path.relative_to(data_dir).as_posix(),
            sha256=artifacts.digest_file(path),
            size_bytes=path.stat().st_size,
            now=datetime.now(UTC),
        )
        failpoint("drawn.before")
    failpoint("drawn.after")


def request_of(sample: Sample, names: tuple[str, ...]) -> SampleRequest:
    """Return what a sample's row asks for."""
    chosen = None if sample.classes is None else tuple(names.index(name) for name in sample.classes)
    return SampleRequest(count=sample.count, seed=sample.seed, names=names, chosen=chosen)


def _load(data_dir: Path, release: Release) -> ReleasedGenerator:
    try:
        return load_released(artifacts.directory_of(data_dir, release.id))
    except (OSError, ValueError):
        raise NotFound("The files of this release cannot be read.", release_id=release.id) from None
