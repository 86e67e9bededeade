"""Enumerations of column values, shared by the code and the CHECK constraints."""

from __future__ import annotations

import enum


class Unit(enum.StrEnum):
    """Protected unit: one record, or all records of one subject."""

    RECORD = "record"
    SUBJECT = "subject"


class Adjacency(enum.StrEnum):
    """Definition of neighbouring datasets."""

    ADD_REMOVE = "add_remove"


class EntryKind(enum.StrEnum):
    """Kinds of ledger entries."""

    OPEN = "open"
    HOLD = "hold"
    ARM = "arm"
    CHARGE = "charge"
    CAPTURE = "capture"
    RETURN = "return"  # of an unused hold
    LIMIT = "limit"
    FREEZE = "freeze"
    ACCEPT = "accept"


class HoldState(enum.StrEnum):
    """State of a reservation of budget: HELD -> RETURNED, or HELD -> ARMED -> CAPTURED."""

    HELD = "held"
    ARMED = "armed"
    CAPTURED = "captured"
    RETURNED = "returned"


class VerificationKind(enum.StrEnum):
    """Extent of a verification of the ledger: all entries, or only those since the newest checkpoint."""

    FULL = "full"
    RECENT = "recent"


class Visibility(enum.StrEnum):
    """Private datasets belong to an account; public datasets cost nothing."""

    PRIVATE = "private"
    PUBLIC = "public"


class DatasetState(enum.StrEnum):
    """State of an upload."""

    DECLARED = "declared"
    RECEIVING = "receiving"
    READY = "ready"
    WITHDRAWING = "withdrawing"
    DELETING = "deleting"
    FAILED = "failed"
    DELETED = "deleted"


TRAIN = "train"  # the only kind of job that reserves budget; `service.jobs.kinds` lists all kinds


class JobState(enum.StrEnum):
    """State of a job: queued -> running -> succeeded | failed | cancelled. A queued job may be cancelled at once."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


UNFINISHED = (JobState.QUEUED, JobState.RUNNING)
ENDED = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


class EarlyEnd(enum.StrEnum):
    """Reason why a training ends before its plan is complete; its partial result is published as incomplete.

    A discarded training publishes nothing. All reasons except CANCELLED and DISCARDED are failure codes.
    """

    CANCELLED = "cancelled"
    DISCARDED = "discarded"
    TIME_LIMIT = "time_limit"
    WORKER_LOST = "worker_lost"
    TRAINING_FAILED = "training_failed"
    OUT_OF_MEMORY = "out_of_memory"


class SampleFormat(enum.StrEnum):
    """File format of a sample; see `obscura.wire.formats`."""

    IMAGEFOLDER = "imagefolder"
    NPZ = "npz"
    PARQUET = "parquet"
    WEBDATASET = "webdataset"


class ReleaseKind(enum.StrEnum):
    """Kind of a release."""

    GENERATOR = "generator"
    HISTOGRAM = "histogram"
    CLASSIFIER = "classifier"


class Admission(enum.StrEnum):
    """Who admitted an admin: the machine's operator, the first admin alone, two admins, or the sign-in provider."""

    MACHINE = "machine"
    ALONE = "alone"
    APPROVED = "approved"
    PROVIDER = "provider"


class DecisionAction(enum.StrEnum):
    """Action that one admin requests and another decides. ACCEPT records spending that a restored database lacks."""

    RAISE = "raise"
    ADMIT = "admit"
    REMOVE = "remove"
    REVOKE = "revoke"
    SHARE = "share"
    ACCEPT = "accept"


class DecisionState(enum.StrEnum):
    """State of a request, which a second admin approves or declines."""

    PENDING = "pending"
    APPROVED = "approved"
    DECLINED = "declined"


class Outcome(enum.StrEnum):
    """Outcome of a request, for the audit log: answered, refused, object not found, or failed."""

    ALLOWED = "allowed"
    REFUSED = "refused"
    MISSING = "missing"
    FAILED = "failed"


class NoticeKind(enum.StrEnum):
    """Kinds of webhook events."""

    JOB_ENDED = "job.ended"
    DECISION_WAITING = "decision.waiting"
    TRAININGS_STOPPED = "trainings.stopped"
