"""What goes over the wire about hyper-parameter searches; see `obscura.wire.schemas`."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from obscura.wire.job_schemas import FailureFacts
from obscura.wire.schemas import ApiRecord, ApiRequest, Epsilon, Identifier, Minute, Name, Options, Text

TRIALS_MIN, TRIALS_MAX = 2, 64  # of a sweep


class TrialRequest(ApiRequest):
    """One training of a sweep."""

    options: Options = Field(
        default_factory=dict,
        description="Of the recipe, as `GET /v1/recipes` describes them; what is absent takes the recipe's own value.",
    )
    epsilon: Epsilon | None = Field(default=None, description="Of this trial; absent: that of the sweep.")


class SweepRequest(ApiRequest):
    """Request a hyperparameter search; the cost of all trials is reserved at once, or nothing is."""

    name: Name = Field(description="For people.")
    dataset_id: Identifier = Field(description="The labelled images.")
    recipe: Text = Field(description="Name of the training loop; `GET /v1/recipes` has them.")
    epsilon: Epsilon | None = Field(default=None, description="Of each trial that names none.")
    trials: list[TrialRequest] = Field(
        min_length=TRIALS_MIN, max_length=TRIALS_MAX, description="Its trainings, in the order in which they run."
    )
    evaluation_dataset_id: Identifier | None = Field(default=None, description="A public dataset to measure against.")


class TrialFacts(ApiRecord):
    """One training of a sweep: its reserved or spent budget, and its quality on public data."""

    job_id: str = Field(description="The job.")
    state: str = Field(description="`queued`, `running`, `succeeded`, `failed` or `cancelled`.")
    options: dict[str, Any] = Field(
        description="Of the recipe, as `GET /v1/recipes` describes them; what is absent takes the recipe's own value."
    )
    epsilon: float = Field(description="Privacy loss at the account's delta.")
    held_nano: int = Field(description="Still reserved; 0 once the trial has ended.")
    charged_nano: int = Field(description="What was charged, in nano-units of mu^2; it stays spent.")
    spent_nano: int = Field(description="What was spent, in nano-units of mu^2. It never decreases.")
    spent_epsilon: float = Field(description="What was spent, as an epsilon at the account's delta.")
    accuracy: dict[str, float] | None = Field(description="On the public evaluation dataset, by classifier.")
    balanced_accuracy: dict[str, float] | None = Field(
        default=None, description="Likewise, as a mean over the classes: rare classes count as much."
    )
    failure: FailureFacts | None = Field(description="Why it failed; null where it has not.")
    release_id: str | None = Field(description="The release.")
    incomplete: bool = Field(description="It ended early; its release is what had been made by then.")

    @property
    def compared_by(self) -> float | None:
        """The balanced accuracy of the CNN; its accuracy where it was measured before there was a balanced one."""
        return (self.balanced_accuracy or self.accuracy or {}).get("cnn")


class SweepTotals(ApiRecord):
    """Sums over the trials, in nano-units of mu^2 and as epsilons at the account's delta."""

    price_nano: int = Field(description="The price, in nano-units of mu^2.")
    held_nano: int = Field(description="Reserved for jobs under way, in nano-units of mu^2.")
    spent_nano: int = Field(description="What was spent, in nano-units of mu^2. It never decreases.")
    returned_nano: int = Field(description="What returned to the account, in nano-units of mu^2.")
    price_epsilon: float = Field(description="The price, as an epsilon at the account's delta.")
    spent_epsilon: float = Field(description="What was spent, as an epsilon at the account's delta.")


class SweepRecord(ApiRecord):
    """A hyperparameter search. Every trial is paid for; choosing the best on public data is free."""

    id: str = Field(description="Its identifier, which never changes.")
    name: str = Field(description="For people.")
    account_id: str = Field(description="The population whose budget pays.")
    dataset_id: str = Field(description="The labelled images.")
    recipe: str = Field(description="Name of the training loop; `GET /v1/recipes` has them.")
    state: str = Field(
        description="`open` while a trial, or the evaluation of one, is queued or running; else `ended`."
    )
    trials: list[TrialFacts] = Field(description="Its trainings, in the order in which they run.")
    totals: SweepTotals = Field(description="Sums over the trials.")
    best_job_id: str | None = Field(
        description="The trial with the highest balanced accuracy of the CNN on public data."
    )
    created_at: Minute = Field(description="When it was made.")

    @property
    def finished(self) -> bool:
        """Return whether every trial has reached a final state."""
        return self.state == "ended"
