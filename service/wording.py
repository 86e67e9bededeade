"""Display names of states, kinds and failures, and the templates of pages.

`obscura.wire.wording` formats numbers.
"""

from __future__ import annotations

from pathlib import Path

import jinja2

from obscura.wire.wording import FILTERS
from obscura.wire.words import Admission, DecisionAction, DecisionState, EntryKind, HoldState
from privacy.plans.registry import RECIPES

NONE_SHOWN = "No figures are shown until an operator has checked the account."
NEEDS_OPERATOR = "The ledger accepts no changes until an operator has checked it."
NO_STORAGE = "The service cannot reach its storage now. Nothing was lost; try again soon."

ENTRIES = {
    EntryKind.OPEN: "Account opened",
    EntryKind.HOLD: "Reserved for a job",
    EntryKind.ARM: "Data opened",
    EntryKind.CHARGE: "Charged in advance",
    EntryKind.CAPTURE: "Spent",
    EntryKind.RETURN: "Returned",
    EntryKind.LIMIT: "Limit changed",
    EntryKind.FREEZE: "Frozen or opened",
    EntryKind.ACCEPT: "Missing spending recorded",
}
HOLDS = {
    HoldState.HELD: "Reserved, data not opened yet",
    HoldState.ARMED: "Reserved, data in use",
    HoldState.CAPTURED: "Spent",
    HoldState.RETURNED: "Returned",
}
RECIPE_TITLES = {name: recipe.title for name, recipe in RECIPES.items()}
ADMISSIONS = {
    Admission.MACHINE: "by the operator of the machine",
    Admission.ALONE: "as the second admin",
    Admission.APPROVED: "by two admins",
    Admission.PROVIDER: "by the groups of the sign-in provider",
}
# What a role may do, in the order of the forms.
ROLES = {
    "analyst": ("Analyst", "plan, generate, evaluate, and train, which spends the budget of the project’s accounts"),
    "steward": ("Steward", "upload and delete images"),
    "auditor": ("Auditor", "read everything, including the audit log"),
    "viewer": ("Viewer", "read releases and samples over the API"),
    "owner": ("Project owner", "manage the project and its budgets; two owners decide about limits"),
    "admin": ("Admin", "manage the installation; two admins decide about limits"),
}
DECISIONS = {
    DecisionAction.RAISE: "Raise the limit of",
    DecisionAction.ADMIT: "Admit",
    DecisionAction.REMOVE: "Remove",
    DecisionAction.REVOKE: "Revoke a key of",
    DecisionAction.SHARE: "Share",
    DecisionAction.ACCEPT: "Record the missing spending of",
}
DECISION_STATES = {
    DecisionState.PENDING.value: "Waits for another admin",
    DecisionState.APPROVED.value: "Approved",
    DecisionState.DECLINED.value: "Declined",
    "expired": "Expired",
}


def open_templates(folder: Path, **beside: Path) -> jinja2.Environment:
    """Return the environment of a folder's templates. `beside` maps prefixes of template names to further folders."""
    further = jinja2.PrefixLoader({name: jinja2.FileSystemLoader(path) for name, path in beside.items()})
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.FileSystemLoader(folder), further]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        auto_reload=False,  # otherwise every page would check its files for changes
    )
    environment.filters |= FILTERS
    return environment
