"""Accounts: `service.accounts.create(...)` opens one, and `account.balance` is its budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from obscura.client.async_resources import AsyncLive, listed, own, verb
from obscura.client.collections import AsyncCollection, Collection
from obscura.client.display import bar
from obscura.client.transport import Live
from obscura.preparing.choices import read_secret
from obscura.preparing.subjects import key_check, keyed_numbers, require_plain_ids, subject_key
from obscura.wire import admin_schemas, schemas
from obscura.wire.budgets import UNIT_WORDS, Unit
from obscura.wire.uploads import SubjectId
from obscura.wire.wording import show_epsilon, show_sure

__all__ = ["Account", "AsyncAccount"]


class Account(Live, schemas.AccountRecord):
    """A population with one privacy budget. Notebooks show spent, reserved and remaining budget."""

    PATH = "/v1/accounts"

    def _facts(self) -> dict[str, str]:
        balance = self.balance
        left, limit = show_epsilon(balance.left_epsilon, up=False), show_epsilon(self.epsilon, up=False)
        spent, reserved, promised = (
            f"epsilon {show_epsilon(each, up=True)}"
            for each in (balance.spent_epsilon, balance.reserved_epsilon, balance.guaranteed_epsilon)
        )
        sure = f"{show_sure(balance.attacker_certainty_max)} at most, for an attacker who was 50% sure"
        facts = {"left": f"epsilon {left} of {limit} left" + (", frozen" if self.frozen else "")}
        facts |= {"delta": f"delta {self.delta:g}", "hides": UNIT_WORDS.get(self.unit, self.unit)}
        facts |= {"spent": spent, "reserved": reserved, "promises": f"{promised} for all that is ever published"}
        return facts | {"certainty": sure, "account": self.id}

    def _picture(self) -> str:
        return bar(spent=self.balance.spent_fraction, reserved=self.balance.reserved_fraction)

    def entries(self) -> Iterator[schemas.EntryRecord]:
        """Yield the ledger entries, oldest first."""
        return self._transport.pages(schemas.EntryRecord, f"{self._path}/entries")

    def lower_limit(self, *, epsilon: float, reason: str) -> Self:
        """Lower the lifetime limit at once. A limit below the spent and reserved budget freezes the account."""
        return self._post("lower-limit", {"epsilon": epsilon, "reason": reason}, repeatable=False)

    def request_raise(self, *, epsilon: float, reason: str) -> admin_schemas.DecisionRecord:
        """Request a higher limit. Nothing changes until another admin approves."""
        body = {"epsilon": epsilon, "reason": reason}
        return self._transport.post(admin_schemas.DecisionRecord, f"{self._path}/raise-limit", body)

    def freeze(self, *, reason: str) -> Self:
        """Freeze an account: it accepts no new jobs, and queued jobs cannot read its data. Running jobs continue."""
        return self._post("freeze", {"reason": reason})

    def unfreeze(self, *, reason: str) -> Self:
        """Unfreeze an account."""
        return self._post("unfreeze", {"reason": reason})

    def close(self) -> Self:
        """Close an account to new data: new people need another account. Trainings on existing data continue."""
        return self._post("close")

    def reopen(self) -> Self:
        """Open a closed account to new data again."""
        return self._post("reopen")

    def withdraw_subjects(
        self,
        private_ids: Sequence[SubjectId],
        *,
        subjects_key: str | Path | None,
        join_subjects: bool = False,
        cancel_jobs: bool = False,
    ) -> schemas.WithdrawalRecord:
        """Destroy the images of subjects forever, in each dataset of the account whose `subjects_recognised` is true.

        Spent budget stays spent. The answer does not reveal whether a subject was found.

        Args:
            subjects_key: File with the secret used for every push. Ids stay on this machine; only keyed hashes are
                sent. None sends the ids themselves, for data that was uploaded through the API with plain ids.
            join_subjects: True if the data was pushed with `join_subjects`.
            cancel_jobs: Cancel the trainings that need the datasets. Charged budget stays spent.

        Raises:
            PackingError: An id is a placeholder or suspicious, such as 12.0, or the secret cannot be read.
            RequestError: Trainings need the datasets, no subject is recognised, or the secret or `join_subjects`
                differs from the first upload.
        """
        require_plain_ids(dict.fromkeys(private_ids, ""), join=join_subjects, withdrawal=True)
        names = [subject_key(private_id, join=join_subjects) for private_id in private_ids]
        body: dict[str, Any] = {"subjects": names, "cancel_jobs": cancel_jobs}
        if (secret := read_secret(subjects_key)) is not None:
            body["subjects"] = [*keyed_numbers(names, secret).values()]
            body["subjects_key_check"] = key_check(secret, join=join_subjects)
        return self._transport.post(schemas.WithdrawalRecord, f"{self._path}/withdrawals", body, repeatable=True)


class Accounts(Collection[Account]):
    """Populations with one privacy budget each."""

    record, path = Account, Account.PATH

    def create(
        self,
        name: str,
        *,
        owner: str,
        epsilon: float,
        delta: float,
        unit: Unit,
        adjacency: str = "add_remove",
        project_id: str | None = None,
        accept_large_delta: bool = False,
    ) -> Account:
        """Open an account with a lifetime budget.

        Example: `service.accounts.create("patients", owner="clinic", epsilon=8, delta=1e-5, unit="subject")`

        Args:
            delta: Recommended: at most 1 / (10 x number of images).
            unit: Protected unit: one record, or all records of a subject.
            project_id: Required if there are several projects.
            accept_large_delta: Confirm a delta above 1e-4.
        """
        body = {"name": name, "owner": owner, "epsilon": epsilon, "delta": delta, "unit": unit, "adjacency": adjacency}
        body |= {"project_id": project_id, "accept_large_delta": accept_large_delta}
        return self._transport.post(Account, self.path, body)


class AsyncAccount(AsyncLive, schemas.AccountRecord):
    entries = listed(Account.entries)
    lower_limit = own(Account.lower_limit)
    request_raise = verb(Account.request_raise)
    freeze = own(Account.freeze)
    unfreeze = own(Account.unfreeze)
    close = own(Account.close)
    reopen = own(Account.reopen)
    withdraw_subjects = verb(Account.withdraw_subjects)


class AsyncAccounts(AsyncCollection[AsyncAccount]):
    create = verb(Accounts.create, AsyncAccount.of)
