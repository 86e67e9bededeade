"""The closed sets of words that columns hold, by which code and CHECK constraints agree."""

from __future__ import annotations

import enum


class Unit(enum.StrEnum):
    """Whose presence the guarantee hides: one record, or all records of one subject."""

    RECORD = "record"
    SUBJECT = "subject"


class Adjacency(enum.StrEnum):
    """Which datasets count as neighbours."""

    ADD_REMOVE = "add_remove"


class EntryKind(enum.StrEnum):
    """What an entry records."""

    OPEN = "open"
    HOLD = "hold"
    ARM = "arm"
    CHARGE = "charge"
    CAPTURE = "capture"
    RETURN = "release"  # of a hold
    LIMIT = "limit"
    FREEZE = "freeze"
    ACCEPT = "accept"


class HoldState(enum.StrEnum):
    """HELD -> RETURNED, or HELD -> ARMED -> CAPTURED."""

    HELD = "held"
    ARMED = "armed"
    CAPTURED = "captured"
    RETURNED = "released"


class VerificationKind(enum.StrEnum):
    """How much of the ledger a verification read: every entry, or those since the newest checkpoint."""

    FULL = "full"
    RECENT = "recent"


class Visibility(enum.StrEnum):
    """Private datasets belong to an account; public ones cost nothing."""

    PRIVATE = "private"
    PUBLIC = "public"


class DatasetState(enum.StrEnum):
    """How far an upload has come."""

    DECLARED = "declared"
    RECEIVING = "receiving"
    READY = "ready"
    WITHDRAWING = "withdrawing"
    DELETING = "deleting"
    FAILED = "failed"
    DELETED = "deleted"


TRAIN = "train"  # the one kind of job that holds budget; all kinds are listed in `service.jobs.kinds`


class JobState(enum.StrEnum):
    """queued -> running -> succeeded | failed | cancelled; a queued job may be cancelled at once."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


UNFINISHED = (JobState.QUEUED, JobState.RUNNING)
ENDED = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


class EarlyEnd(enum.StrEnum):
    """Why a training ends before its plan: its budget is closed, and what it has made is published as incomplete.

    A training that is discarded publishes nothing. The others are failures, by the names of their codes.
    """

    CANCELLED = "cancelled"
    DISCARDED = "discarded"
    TIME_LIMIT = "time_limit"
    WORKER_LOST = "worker_lost"
    TRAINING_FAILED = "training_failed"
    OUT_OF_MEMORY = "out_of_memory"


class SampleFormat(enum.StrEnum):
    """How a sample is packed; `obscura.wire.formats` says what that is."""

    IMAGEFOLDER = "imagefolder"
    NPZ = "npz"
    PARQUET = "parquet"
    WEBDATASET = "webdataset"


class ReleaseKind(enum.StrEnum):
    """What a release is."""

    GENERATOR = "generator"
    HISTOGRAM = "histogram"
    CLASSIFIER = "classifier"


class Admission(enum.StrEnum):
    """Who let an admin in: the operator on the machine itself, the first admin alone, two admins, or the sign-in
    provider, by a group."""

    MACHINE = "machine"
    ALONE = "alone"
    APPROVED = "approved"
    PROVIDER = "provider"


class DecisionAction(enum.StrEnum):
    """What one admin asks for and another decides. ACCEPT records spending that a restored database lacks."""

    RAISE = "raise"
    ADMIT = "admit"
    REMOVE = "remove"
    REVOKE = "revoke"
    SHARE = "share"
    ACCEPT = "accept"


class DecisionState(enum.StrEnum):
    """State of a request that two people decide."""

    PENDING = "pending"
    APPROVED = "approved"
    DECLINED = "declined"


class Outcome(enum.StrEnum):
    """What came of a request: an answer, a refusal, that nothing was there, or no answer."""

    ALLOWED = "allowed"
    REFUSED = "refused"
    MISSING = "missing"
    FAILED = "failed"


class NoticeKind(enum.StrEnum):
    """What a webhook may be told."""

    JOB_ENDED = "job.ended"
    DECISION_WAITING = "decision.waiting"
    TRAININGS_STOPPED = "trainings.stopped"
