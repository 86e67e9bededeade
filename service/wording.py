"""What states, kinds and failures are called in pages, problem documents and reports, and the pages' templates.

Numbers are written by `obscura.wire.wording`.
"""

from __future__ import annotations

from pathlib import Path

import jinja2

from obscura.wire.wording import FILTERS, show_percent
from obscura.wire.words import (
    AdminAction,
    AdminRequestState,
    Admission,
    EntryKind,
    FailureCode,
    HoldState,
    JobState,
    LimitRequestState,
)
from privacy.plans.registry import RECIPES

FAILURES = {
    FailureCode.TRAINING_FAILED: "The training did not finish, and had nothing that could be published.",
    FailureCode.EVALUATION_FAILED: "The evaluation did not finish. The release is as it was; ask for another one.",
    FailureCode.PREVIEW_FAILED: "The preview did not finish. It costs nothing to ask again.",
    FailureCode.SAMPLING_FAILED: "The sampling did not finish. It costs nothing to ask again.",
    FailureCode.DATASET_UNAVAILABLE: "The dataset could not be opened.",
    FailureCode.RELEASE_UNAVAILABLE: "The release's files could not be opened.",
    FailureCode.HOLD_EXHAUSTED: "The budget held for this job was used up before there was anything to publish.",
    FailureCode.OUT_OF_MEMORY: "The worker ran out of memory.",
    FailureCode.OUT_OF_DISK: "The worker ran out of disk space.",
    FailureCode.TIME_LIMIT: "The job took longer than the service allows, and had nothing that could be published.",
    FailureCode.WORKER_LOST: "The process that ran the job was lost too often, and nothing could be published.",
    FailureCode.LEDGER_UNAVAILABLE: "The ledger could not be reached, and without it nothing may be charged.",
    FailureCode.INTERNAL: "Something broke on our side. The operator's log says more.",
}
NONE_SHOWN = "None is shown until an operator has looked."
NEEDS_OPERATOR = "The ledger refuses to go on until an operator has looked at it."

JOB_STATES = {
    JobState.QUEUED: "Queued",
    JobState.RUNNING: "Running",
    JobState.SUCCEEDED: "Succeeded",
    JobState.FAILED: "Failed",
    JobState.CANCELLED: "Cancelled",
}
ENTRIES = {
    EntryKind.OPEN: "Account opened",
    EntryKind.HOLD: "Held for a job",
    EntryKind.ARM: "Data opened",
    EntryKind.CHARGE: "Charged ahead",
    EntryKind.CAPTURE: "Spent",
    EntryKind.RETURN: "Returned",
    EntryKind.SAMPLE: "Sampled again, free",
    EntryKind.LIMIT: "Limit changed",
    EntryKind.FREEZE: "Frozen or opened",
    EntryKind.FACT: "Written down",
    EntryKind.COUNT: "Records counted, with noise",
}
HOLDS = {
    HoldState.HELD: "Held, data not opened yet",
    HoldState.ARMED: "Held, data in use",
    HoldState.CAPTURED: "Spent",
    HoldState.RETURNED: "Returned",
}
RECIPE_TITLES = {name: recipe.title for name, recipe in RECIPES.items()}
LIMIT_REQUESTS = {
    LimitRequestState.PENDING: "Waits for a second admin",
    LimitRequestState.APPROVED: "Approved",
    LimitRequestState.DECLINED: "Declined",
}
ADMISSIONS = {
    Admission.MACHINE: "by the operator of the machine",
    Admission.ALONE: "as the second admin",
    Admission.APPROVED: "by two admins",
}
ADMIN_ACTIONS = {
    AdminAction.ADMIT: "Admit",
    AdminAction.REMOVE: "Remove",
    AdminAction.REVOKE: "Revoke a key of",
}
ADMIN_REQUESTS = {
    AdminRequestState.PENDING: "Waits for another admin",
    AdminRequestState.APPROVED: "Approved",
    AdminRequestState.DECLINED: "Declined",
}


_STATIC, _FAINT = 0.25, 0.6  # parts of what real images would teach, beyond guessing


def forecast_sentence(accuracy: float, real: float | None, chance: float, stand_in: str) -> str:
    """Say what a preview found, and warn where there is little to see.

    Args:
        accuracy: of a classifier that learned what was drawn, tested on images of the stand-in.
        real: of the same that learned the stand-in's own images; None where a classifier itself was previewed.
        chance: of guessing.
        stand_in: what stood in for the private images.
    """
    what = "A classifier that learns such images is" if real is not None else "Such a classifier is"
    sentence = f"{what} right on {show_percent(accuracy)} of {stand_in} (guessing: {show_percent(chance)}"
    sentence += ")." if real is None else f"; learning the real ones: {show_percent(real)})."
    kept = (accuracy - chance) / max((1.0 if real is None else real) - chance, 1e-9)
    if kept < _STATIC:
        sentence += (
            " At this budget noise drowns nearly everything: more records, fewer classes or a larger epsilon help."
        )
    elif kept < _FAINT:
        sentence += " At this budget much of it is lost in noise."
    return f"{sentence} This is a forecast on other images, not a promise."


def open_templates(folder: Path) -> jinja2.Environment:
    """Return the templates of a folder: escaped, strict about names, with the numbers' filters."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= FILTERS
    return environment
