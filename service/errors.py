"""Typed errors of the service, with numbers and a remedy. Only service/api/problems.py knows HTTP."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from obscura.wire.budgets import DELTA_USUAL_MOST
from obscura.wire.names import NAME_CHARACTERS_MAX, REASON_CHARACTERS_MAX, clean_text
from obscura.wire.wording import show_bytes, show_epsilon

if TYPE_CHECKING:
    from obscura.wire.schemas import BalanceFacts


class ObscuraError(Exception):
    """Base of every error a caller may see.

    Attributes:
        code: closed machine-readable name, stable across versions; of a direct subclass, its name in snake case.
        message: one or two sentences for a person; never contains private values.
        numbers: JSON-able facts behind the message.
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
    """The state of the object does not allow this."""


class InvalidInput(ObscuraError):
    """The request is invalid; nothing was written."""


class LargeDelta(InvalidInput):
    """An account's delta is above the usual bound, and the request does not confirm it."""

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
    """An idempotency key was used again with another body."""

    code = "idempotency_mismatch"


class ClockRefused(ObscuraError):
    """The clock of this machine is wrong, so nothing is dated by it. Retry after setting it."""


class DatabaseUnsuitable(ObscuraError):
    """A setting of the PostgreSQL database or session would change what is written or read. Nothing was written."""


class Unauthorized(ObscuraError):
    """No valid key was given."""


class Forbidden(ObscuraError):
    """The key is valid but lacks the scope."""


class TooLarge(ObscuraError):
    """Something has more bytes than its limit."""

    def __init__(self, subject: str, limit_bytes: int, size_bytes: int | None = None, **numbers: object) -> None:
        """Build the message; `subject` begins it, such as "This file". The size may be unknown."""
        size, limit = (show_bytes(size_bytes) if size_bytes else ""), show_bytes(limit_bytes)
        if size == limit:
            size, limit = f"{size_bytes:,} bytes", f"{limit_bytes:,} bytes"
        verdict = f"is {size}. The limit is {limit}." if size else f"is larger than the limit, {limit}."
        super().__init__(f"{subject} {verdict}", limit_bytes=limit_bytes, **numbers)


class StaleAttempt(ObscuraError):
    """A superseded attempt, or an attempt of an ended job, tried to write."""


class HoldExhausted(ObscuraError):
    """A charge would go beyond the job's hold. Nothing of that step may be released."""


class AccountFrozen(ObscuraError):
    """The account takes no new holds: its owner froze it, or its limit was lowered below its spend."""


class AccountClosed(ObscuraError):
    """The account accepts no new data: its owner closed it. Trainings on its present data go on."""


class LedgerCorruption(ObscuraError):
    """An assertion about our own records failed. Nothing may be armed until an operator has looked."""


@dataclass(eq=False, kw_only=True)
class InsufficientBudget(ObscuraError):
    """A job needs more than its account has left.

    Integer nano-units of mu^2 are compared; epsilons (at the account's delta) are only shown. They do not add up.
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
            options.append(f"sample release *{self.release_id}* again at no cost")
        return (
            f"This job needs epsilon {show_epsilon(self.requested_epsilon, up=True)}. {self._left()}; epsilons of "
            f"parts need not add up, the ledger adds exact prices). {self._choice(options)}"
        )

    def _left(self) -> str:
        now = self.balance
        return (
            f"Account *{self.account}* has {show_epsilon(now.left_epsilon, up=False)} left "
            f"of {show_epsilon(now.limit_epsilon, up=False)} "
            f"({show_epsilon(now.spent_epsilon, up=True)} spent, {show_epsilon(now.reserved_epsilon, up=True)} reserved"
        )

    def _choice(self, options: list[str]) -> str:
        spent, last = "", "ask the owner"
        if self.balance.affordable_epsilon == 0:
            spent = "No further training fits; sampling and evaluating existing releases stays free. "
            last = "request a higher limit, which two admins decide"
        return f"{spent}You can: {', or '.join([', '.join(options), last] if options else [last])}."

    def suggesting(self, release_id: str | None) -> InsufficientBudget:
        """Return the same error with the name of a release that can be sampled for free."""
        return replace(self, release_id=release_id)


@dataclass(eq=False, kw_only=True)
class SweepTooExpensive(InsufficientBudget):
    """The trials of a sweep together need more than their account has left. None was accepted."""

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
            f"which pays for {self.trials_affordable} of them in their order. Nothing was accepted. "
            f"{self._choice(options)}"
        )


def short_reason(text: str) -> str:
    """Return a reason in its clean form, or raise InvalidInput."""
    return require_name(text, "A reason", REASON_CHARACTERS_MAX)


def require_name(text: str, what: str, characters_max: int = NAME_CHARACTERS_MAX) -> str:
    """Return a name in its clean form, or raise InvalidInput with a message that begins with `what`."""
    try:
        return clean_text(text, characters_max)
    except ValueError as error:
        raise InvalidInput(f"{what} cannot be read: {error}.") from None
