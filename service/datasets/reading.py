"""Receive the content of a dataset: stream it to quarantine, parse it in a confined process, publish the arrays.

The parent never parses an upload. It counts and hashes bytes, starts `python -m service.ingest`, and accepts the
resulting arrays only after it has checked their headers, labels and tags. Nothing is written to disk unencrypted: the
file in quarantine is sealed under a key known only to the parent and the confined process. The confined process also
seals the arrays while it writes them.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np

from obscura.image_types import PIXELS_MAX
from obscura.private_files import make_private_folder
from obscura.wire.formats import UploadFit
from obscura.wire.uploads import Fault
from service.datasets import vault
from service.datasets.fingerprints import Fingerprints, fingerprint, recognise
from service.db.dataset_tables import Dataset
from service.dependencies import patient
from service.errors import InvalidInput, NotFound, ObscuraError, TooLarge
from service.failpoints import failpoint
from service.ingest import faults
from service.ingest.array_files import QUARANTINE, SEALED_SUFFIX, SUBJECTS_NAME, array_names, create_array
from service.ingest.request import IngestLimits, IngestRequest
from service.logs import get_logger
from service.sealing import SealedWriter, new_key
from service.settings import Settings
from service.storage.interface import UNFINISHED, key_of

_REPLY_BYTES_MAX = 64


class UploadRefused(InvalidInput):
    """The content breaks the rule named by `fault` in `numbers`. The dataset remains declared."""

    code: ClassVar[str] = "upload_refused"


class UploadFailed(ObscuraError):
    """The service failed; the content may be valid. The dataset remains declared."""


class UploadsStopped(ObscuraError):
    """The service has no fingerprint key. It creates the key only if the checks at its start find nothing wrong."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A request to upload: the body in blocks, the format, how images are fitted, and the announced length, if any."""

    blocks: Iterator[bytes]
    format: str
    announced_bytes: int | None = None
    subjects_key_check: str | None = None
    fit: UploadFit = "exact"


@dataclass(frozen=True, slots=True)
class Content:
    """Content that was read, and the facts to record about it, deliberately without the number of records.

    Fingerprints are secret even for public content, because look-ups with them reveal known images.
    """

    dataset: Dataset  # the row at the start of the upload; its `upload_attempt` fences the upload
    sent: Sent
    sha256: str
    bytes: int
    private_fingerprints: Fingerprints = field(repr=False)
    vault_key_id: str = field(repr=False)
    publish: Callable[[], None]  # idempotent; call it in the transaction that records the content
    private_subjects: Fingerprints = field(default=frozenset(), repr=False)  # of recognised subjects


@contextmanager
def staged(context: vault.DatasetContext, dataset: Dataset, sent: Sent) -> Iterator[Content]:
    """Read content, and yield it to be published inside the `with` block, after which temporary files are removed."""
    key = key_of(dataset.id)
    request = _request(context.settings, dataset, sent)
    secret = secret_of_fingerprints(context.settings)
    storage = context.vault.storage
    with ExitStack() as stack:
        with _disk_faults(request):
            make_private_folder(request.source.parent)
        stack.callback(request.source.unlink, missing_ok=True)
        digest, size = _quarantine(sent, request)
        with _disk_faults(request):
            request = replace(request, target=stack.enter_context(storage.stage(key, mark=str(dataset.upload_attempt))))
        _run_ingest(request)
        images, subjects = _judge(request, dataset.project_id, secret)
        with _disk_faults(request), patient():  # uploads are few, and a received body must not be lost
            storage.send(request.target, key)
        key_id = vault.key_id_of(request.target_key)
        publish = partial(_publish, context.vault, request)
        yield Content(dataset, sent, digest, size, images, key_id, publish, subjects)


def sweep(settings: Settings, live: Callable[[], Set[tuple[str, int]]]) -> None:
    """Remove the files of interrupted uploads: those without an id and attempt that `live` returns.

    `live` is called after listing the files, because an upload is in the database before it has files.
    """
    storage = vault.Vault.of(settings).storage
    sent = {path.name: path for path in settings.quarantine_path.glob("*") if not path.is_dir()}  # not `parts`
    # Staging folders of withdrawals have one more dot in their names, and are removed with the withdrawal.
    names = (
        name for name in storage.list("datasets") if name.endswith(UNFINISHED) and name.count(".") == vault.STAGED_DOTS
    )
    unfinished = {name.removesuffix(UNFINISHED): f"datasets/{name}" for name in names}
    kept = {f"{dataset_id}.{attempt}" for dataset_id, attempt in live()} if sent or unfinished else set()
    for name in sent.keys() - kept:
        sent[name].unlink(missing_ok=True)  # another process may remove it, too
    for name in unfinished.keys() - kept:
        storage.remove(unfinished[name])


def _request(settings: Settings, dataset: Dataset, sent: Sent) -> IngestRequest:
    limits = IngestLimits(
        upload_bytes_max=settings.upload_bytes_max,
        records_max=settings.images_max,
        entries_max=settings.images_max * (1 if dataset.subjects_declared is None else 2) + 2 * settings.classes_max,
        decoded_bytes_max=settings.decoded_bytes_max,
        pixels_max=settings.pixels_max if sent.fit == "exact" else PIXELS_MAX,
        memory_bytes_max=settings.ingest_memory_bytes_max,
        seconds_max=settings.ingest_seconds_max,
    )
    return IngestRequest(
        dataset_id=dataset.id,
        classes=tuple(dataset.classes),
        height=dataset.height,
        width=dataset.width,
        channels=dataset.channels,
        records_declared=dataset.records_declared,
        subjects_declared=dataset.subjects_declared,
        subjects_recognised=dataset.subjects_recognised,
        source=settings.quarantine_path / f"{dataset.id}.{dataset.upload_attempt}",
        target=Path(),  # set after staging
        format=sent.format,
        fit=sent.fit,
        limits=limits,
        source_key=new_key(),
        target_key=new_key(),
    )


def _quarantine(sent: Sent, request: IngestRequest) -> tuple[str, int]:
    limit, announced = request.limits.upload_bytes_max, sent.announced_bytes
    if announced is not None and announced > limit:
        raise _error(Fault.TOO_LARGE, request, announced)
    digest, size = hashlib.sha256(), 0
    with _disk_faults(request):
        descriptor = os.open(request.source, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "wb", buffering=0) as file:
        with _disk_faults(request):
            sealed = SealedWriter(file, request.source_key, QUARANTINE)
        for block in sent.blocks:
            size += len(block)
            if size > limit:
                raise _error(Fault.TOO_LARGE, request)
            if announced is not None and size > announced:
                raise _error(Fault.INCOMPLETE, request)
            digest.update(block)
            with _disk_faults(request):
                sealed.write(block)
        with _disk_faults(request):
            sealed.finish()
    if announced is not None and size != announced:
        raise _error(Fault.INCOMPLETE, request)
    if size == 0:
        raise _error(Fault.EMPTY, request)
    return digest.hexdigest(), size


@contextmanager
def _disk_faults(request: IngestRequest) -> Iterator[None]:
    """Convert OSError from our disk to UploadFailed, which names no path. Errors of the body propagate."""
    try:
        yield
    except OSError:
        raise _error(Fault.STORAGE, request) from None


def _run_ingest(request: IngestRequest) -> None:
    """Parse the quarantined file in a process with resource limits and none of the service's credentials."""
    environment = {
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "LC_ALL": "C.UTF-8",
    }
    with tempfile.TemporaryFile() as reply:
        try:
            finished = subprocess.run(
                [sys.executable, "-P", "-m", "service.ingest"],
                input=request.to_json().encode(),
                stdout=reply,
                stderr=subprocess.DEVNULL,
                cwd=request.target,
                env=environment,
                start_new_session=True,
                timeout=request.limits.seconds_max,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise _error(Fault.TOO_COSTLY, request) from None
        reply.seek(0)
        word = reply.read(_REPLY_BYTES_MAX).decode("ascii", "replace").strip()
    if finished.returncode == 0 and word == "ok":
        return
    if finished.returncode == 0 and word in set(Fault):
        raise _error(Fault(word), request)
    raise _error(Fault.TOO_COSTLY if finished.returncode < 0 else Fault.INTERNAL, request)


def _judge(request: IngestRequest, project_id: str, secret: bytes) -> tuple[Fingerprints, Fingerprints]:
    """Validate the arrays without trusting the confined process; return fingerprints of images and subjects.

    Authenticates every chunk, so accepted content is readable. Recognised subjects are stored under their permanent
    numbers; other subjects have no fingerprints.
    """
    try:
        if sorted(os.listdir(request.target)) != [f"{name}{SEALED_SUFFIX}" for name in array_names(request)]:
            raise _error(Fault.INTERNAL, request)
        with ExitStack() as stack:
            place = request.target, request.dataset_id
            opened = (vault.SealedArray(*place, name, request.target_key) for name in array_names(request))
            images, labels, *of_subjects = map(stack.enter_context, opened)
            count = labels.shape[0]
            if (
                not 0 < count <= request.records_max
                or labels.shape != (count,)
                or labels.dtype != np.int64
                or images.shape != (count, *request.record_shape)
                or images.dtype != np.uint8
                or any(subjects.shape != (count,) or subjects.dtype != np.int64 for subjects in of_subjects)
            ):
                raise _error(Fault.INTERNAL, request)
            private_labels = labels.read()
            if int(private_labels.min()) < 0 or int(private_labels.max()) >= len(request.classes):
                raise _error(Fault.INTERNAL, request)
            private_subjects = [subjects.read() for subjects in of_subjects]
            for each in private_subjects:
                if int(each.min()) < 0 or len(np.unique(each)) > (request.subjects_declared or 0):
                    raise _error(Fault.INTERNAL, request)
            image_prints = fingerprint(images.batches(), secret)
        if not request.subjects_recognised:
            return image_prints, frozenset()
        numbers, subject_prints = recognise(private_subjects[0], project_id, secret)
        (request.target / f"{SUBJECTS_NAME}{SEALED_SUFFIX}").unlink()
        with create_array(request, SUBJECTS_NAME, numbers.shape, np.int64) as stored:
            stored.append(numbers)
    except (OSError, NotFound, ValueError):
        raise _error(Fault.INTERNAL, request) from None
    return image_prints, subject_prints


def secret_of_fingerprints(settings: Settings) -> bytes:
    """Return the secret key of fingerprints. Raise UploadsStopped if it is missing."""
    path = vault.fingerprint_key_path(settings)
    try:
        return vault.read_key(path)
    except NotFound:  # with a new secret, known images would appear new
        get_logger(__name__).error("fingerprint_key_missing", path=str(path))
        raise UploadsStopped(
            "The service accepts no uploads, because the key by which it recognises images is missing. Ask the "
            "operator to run `obscura ledger verify`, to correct what it lists, and to restart the service, which then "
            "creates a key. An earlier key can only be restored from a backup. Nothing was changed: the dataset stays "
            "declared, and the same upload can be sent again."
        ) from None


def _publish(datasets: vault.Vault, request: IngestRequest) -> None:
    if not request.target.exists():
        return  # published by an earlier try whose transaction failed
    with _disk_faults(request):
        datasets.shred(request.dataset_id)  # left by a crash
        vault.write_key(datasets.key_path(request.dataset_id), request.target_key)
        failpoint("upload.before")
        datasets.storage.publish(request.target, key_of(request.dataset_id))
        failpoint("upload.after")


def _error(fault: Fault, request: IngestRequest, size_bytes: int | None = None) -> ObscuraError:
    if fault is Fault.TOO_LARGE:
        return TooLarge("This file", request.limits.upload_bytes_max, size_bytes, fault=fault.value)
    refusal = UploadFailed if fault in (Fault.STORAGE, Fault.INTERNAL) else UploadRefused
    return refusal(faults.explain(fault, request), fault=fault.value)
