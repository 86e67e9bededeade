"""Typed errors of the service, with numbers and a remedy. Only service/api/problems.py knows HTTP."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from obscura.wire.budgets import DELTA_USUAL_MOST
from obscura.wire.texts import NAME_CHARACTERS_MAX, REASON_CHARACTERS_MAX, clean_text
from obscura.wire.wording import show_bytes, show_epsilon

if TYPE_CHECKING:
    from obscura.wire.schemas import BalanceFacts


class ObscuraError(Exception):
    """Base class of all errors that a caller may see.

    Attributes:
        code: stable, machine-readable name from a closed set; for a direct subclass, its name in snake case.
        message: one or two sentences for a person, without private values.
        numbers: the facts of the message, as JSON.
    """

    code: ClassVar[str] = "error"

    def __init__(self, message: str, **numbers: object) -> None:
        super().__init__(message)
        self.message = message
        self.numbers = numbers

    def __init_subclass__(cls) -> None:
        if ObscuraError in cls.__bases__ and "code" not in vars(cls):
            cls.code = re.sub("(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


class NotFound(ObscuraError):
    """The object does not exist, or is not visible to the caller."""


class Conflict(ObscuraError):
    """The object's state does not allow this request."""


class InvalidInput(ObscuraError):
    """The request is invalid; nothing was written."""


class LargeDelta(InvalidInput):
    """The account's delta is above the usual bound, and the request does not confirm it."""

    code = "large_delta"

    def __init__(self, delta: float) -> None:
        super().__init__(
            f"Delta {delta:g} is large: the guarantee may fail with this probability, 1 in {1 / delta:,.0f}, and the "
            "account keeps it forever. Choose at most 1 / (10 x number of images), such as 1e-05 for 10,000 images, "
            "or confirm it with accept_large_delta.",
            delta=delta,
            delta_usual_most=DELTA_USUAL_MOST,
        )


class IdempotencyMismatch(InvalidInput):
    """The idempotency key was used before with another body."""

    code = "idempotency_mismatch"


class ClockRefused(ObscuraError):
    """The clock of this machine is wrong, so nothing was written with its time. Set the clock, then retry."""


class DatabaseUnsuitable(ObscuraError):
    """A setting of the PostgreSQL database or session would change stored values. Nothing was written."""


class Unauthorized(ObscuraError):
    """The request has no valid key."""


class Forbidden(ObscuraError):
    """The key is valid but lacks the scope."""


class TooLarge(ObscuraError):
    """The data has more bytes than its limit."""

    def __init__(self, subject: str, limit_bytes: int, size_bytes: int | None = None, **numbers: object) -> None:
        """Build the message, which starts with `subject`, such as "This file". The size may be unknown."""
        size, limit = (show_bytes(size_bytes) if size_bytes else ""), show_bytes(limit_bytes)
        if size == limit:
            size, limit = f"{size_bytes:,} bytes", f"{limit_bytes:,} bytes"
        verdict = f"is {size}. The limit is {limit}." if size else f"is larger than the limit, {limit}."
        super().__init__(f"{subject} {verdict}", limit_bytes=limit_bytes, **numbers)


class StaleAttempt(ObscuraError):
    """An attempt of a job tried to write after another attempt took over, or after the job ended."""


class HoldExhausted(ObscuraError):
    """A charge would exceed the budget held for the job. No result of that step may be released."""


class AccountFrozen(ObscuraError):
    """The account accepts no new trainings: its owner froze it, or its limit was lowered below its spend."""


class AccountClosed(ObscuraError):
    """The account accepts no new data: its owner closed it. Trainings on its existing data continue."""


class LedgerCorruption(ObscuraError):
    """The ledger's records contradict each other. No training may open private data until an operator has checked."""


@dataclass(eq=False, kw_only=True)
class InsufficientBudget(ObscuraError):
    """A job needs more budget than its account has left.

    Integer nano-units of mu^2 are compared. Epsilons (at the account's delta) are for display: they do not add up.
    """

    account: str
    balance: BalanceFacts
    requested_nano: int
    requested_epsilon: float
    release_id: str | None = None

    def __post_init__(self) -> None:
        balance = self.balance.model_dump(exclude={"guaranteed_epsilon", "attacker_certainty_max"})
        facts = {name: value for name, value in vars(self).items() if name != "balance"}
        super().__init__(self._teach(), **facts, **balance)

    def _teach(self) -> str:
        options = []
        if self.balance.affordable_epsilon > 0:
            options.append(f"ask for {show_epsilon(self.balance.affordable_epsilon, up=False)}")
        if self.release_id is not None:
            options.append(f"sample release '{self.release_id}' again at no cost")
        return (
            f"This job needs epsilon {show_epsilon(self.requested_epsilon, up=True)}. {self._left()}; epsilons of "
            f"parts need not add up, so the ledger adds exact costs). {self._choice(options)}"
        )

    def _left(self) -> str:
        now = self.balance
        return (
            f"Account '{self.account}' has {show_epsilon(now.left_epsilon, up=False)} left "
            f"of {show_epsilon(now.limit_epsilon, up=False)} "
            f"({show_epsilon(now.spent_epsilon, up=True)} spent, {show_epsilon(now.reserved_epsilon, up=True)} reserved"
        )

    def _choice(self, options: list[str]) -> str:
        spent, last = "", "ask the owner for a higher limit"
        if self.balance.affordable_epsilon == 0:
            spent = "No further training fits; sampling and evaluating existing releases stays free. "
            last = "request a higher limit, which two admins decide"
        return f"{spent}You can: {', or '.join([', '.join(options), last] if options else [last])}."

    def suggesting(self, release_id: str | None) -> InsufficientBudget:
        """Return the same error with the id of a release that can generate images for free."""
        return replace(self, release_id=release_id)


@dataclass(eq=False, kw_only=True)
class SweepTooExpensive(InsufficientBudget):
    """The trials of a sweep together need more budget than their account has left. No trial was accepted."""

    trials: int
    trials_affordable: int
    epsilon_affordable_for_each: float
    requested_epsilon_of_each: float

    def _teach(self) -> str:
        options = []
        if self.trials_affordable > 1:
            options.append(f"try the first {self.trials_affordable}")
        if self.epsilon_affordable_for_each > 0:
            each = show_epsilon(self.epsilon_affordable_for_each, up=False)
            options.append(f"ask for {each} or less for each of the {self.trials}")
        return (
            f"The {self.trials} trials of this sweep need epsilon {show_epsilon(self.requested_epsilon, up=True)} "
            f"together (up to {show_epsilon(self.requested_epsilon_of_each, up=True)} each). {self._left()}), "
            f"which pays for the first {self.trials_affordable}. No trial was accepted. "
            f"{self._choice(options)}"
        )


def short_reason(text: str) -> str:
    """Return a reason in normalized form; raise InvalidInput if it is not valid."""
    return require_name(text, "A reason", REASON_CHARACTERS_MAX)


def require_name(text: str, what: str, characters_max: int = NAME_CHARACTERS_MAX) -> str:
    """Return a name in normalized form; if invalid, raise InvalidInput with a message that starts with `what`."""
    try:
        return clean_text(text, characters_max)
    except ValueError as error:
        raise InvalidInput(f"{what} is not valid: {error}.") from None
