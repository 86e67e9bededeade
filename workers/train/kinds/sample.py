"""One attempt at a sample job: generate images from a release into a file of the requested format.

Post-processing of a release: free and repeatable. The same release, seed, classes, proportions and count give the same
bytes. That requires the same kind of CPU and the same versions of the drawing and packing libraries. Every batch has
its own random stream derived from the public seed, and the order of the images is fixed.
"""

from __future__ import annotations

from models import released
from obscura.wire.formats import PACKINGS
from service import jobs
from service.db.job_tables import Release, Sample
from service.db.session import transaction
from service.errors import NotFound
from service.failpoints import failpoint
from service.identity.access import find
from service.jobs.kinds import sample as kind
from service.storage.interface import digest_file, key_of
from workers.recipes.interface import Piece
from workers.train.drawing import SampleRequest, draw
from workers.train.orders import Context
from workers.train.packing import SampleFile, pack
from workers.train.progress import ReportedProgress

STAGE = "sample"  # of reports


def run(context: Context) -> None:
    """Write the file of a sample job and end the job. A file left by a lost attempt has the same bytes and is kept.

    Raise NotFound if the release's files are gone, and MissingPrerequisite without the signing key.
    """
    storage, job_id = context.storage, context.attempt.job_id
    with transaction(context.factory, read_only=True) as session:
        sample = jobs.made_by(session, Sample, job_id)
        release = find(session, Release, sample.release_id)
        names = tuple(jobs.trained_on(session, release).classes)
    key, name = key_of(sample.id), f"{sample.id}.{PACKINGS[sample.format.value].suffix}"
    if not storage.holds(key):
        progress = ReportedProgress(context, [Piece(STAGE, sample.count, 1.0)])
        folder = storage.open(key_of(release.id))
        try:
            generator = released.load_released(folder)  # on the CPU, so that equal seeds give equal bytes
        except (OSError, ValueError):
            raise NotFound("The files of this release cannot be read.", release_id=release.id) from None
        chosen = None if sample.classes is None else tuple(names.index(name) for name in sample.classes)
        weights = None
        if sample.proportions is not None:
            chosen = tuple(label for label, name in enumerate(names) if name in sample.proportions)
            weights = tuple(float(sample.proportions[names[label]]) for label in chosen)
        request = SampleRequest(sample.count, sample.seed, names, chosen, weights)
        with storage.stage(key) as staging:
            file = SampleFile(sample.format, release.name, release.card, release.id, context.signing_key().sign)
            pack(staging / name, draw(generator, request, progress, STAGE), request, file)
            failpoint("sample.before")
            storage.publish(staging, key)
            failpoint("sample.after")
    path = storage.open(key, name)
    done = {"path": f"{key}/{name}", "sha256": digest_file(path), "bytes": path.stat().st_size}
    context.end(kind.KIND.finish, at="drawn", **done)
