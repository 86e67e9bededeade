"""Errors of the privacy layer. Their messages contain the numbers and a remedy."""

from __future__ import annotations


class PrivacyError(ValueError):
    """A request would break a privacy guarantee."""


class InvalidParameter(PrivacyError):
    """A public parameter is outside the range in which the mathematics holds."""

    def __init__(self, name: str, value: object, why: str) -> None:
        super().__init__(f"{name}={value!r} is refused: {why}")
        self.name = name
        self.value = value
        self.why = why


class ContributionUnbounded(PrivacyError):
    """A record or subject would change a release by more than its sensitivity. Nothing was charged or released."""


class EventRefused(PrivacyError):
    """A training tried to pay for a release that is not in its plan. Nothing was charged or released."""

    def __init__(self, stage: str, event: object) -> None:
        super().__init__(f"the plan of this job has no release {event!r} in a stage named {stage!r}")
        self.stage = stage
        self.event = event


class BudgetExceeded(PrivacyError):
    """An event costs more nano-units of mu^2 than are left. Nothing was charged and nothing may be released."""

    def __init__(self, requested_nano: int, remaining_nano: int) -> None:
        super().__init__(
            f"this needs {requested_nano} nano-units of budget, and {remaining_nano} are left: request fewer releases "
            "or more noise, or generate images from an existing release, which is free"
        )
        self.requested_nano = requested_nano
        self.remaining_nano = remaining_nano
