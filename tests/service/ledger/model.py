"""A model of the ledger: dictionaries without a database, a lock or a clock.

Every method has the name and arguments of a production function. It changes the dictionaries, or raises `Refused` with
the expected error code. It follows docs/contribute/architecture.md, one rule a line, and shares with production only
the filter, which has tests of its own. `made` passes the identifiers that production chose.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from privacy.accounting.filter import open_filter

REQUEST_DAYS = 7
OPEN = ("held", "armed")
# The columns that a model and a database must agree on, by table.
COLUMNS = {
    "accounts": "epsilon capacity_nano spent_nano reserved_nano frozen",
    "holds": "account_id job_id state amount_nano charged_nano captured_nano attempt armed_attempt",
    "decisions": "account_id epsilon_before epsilon state requested_with decided_with",
    "jobs": "kind account_id state attempt attempts_lost lease_owner lease_until cancel_requested failure_code hold_id "
    "release_id",
    "releases": "job_id account_id artifact_sha256",
    "samples": "release_id sha256",
}


def in_columns(tables: Mapping[str, Mapping[Any, Mapping[Any, Any]]]) -> dict[str, dict[Any, Any]]:
    """Return the columns to compare, by table and key."""
    return {
        name: {key: tuple(row[column] for column in COLUMNS[name].split()) for key, row in rows.items()}
        for name, rows in tables.items()
    }


class Refused(Exception):
    """The command must be refused with this code and change nothing."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


def require(condition: bool, code: str) -> None:
    """Refuse with a code unless the condition holds."""
    if not condition:
        raise Refused(code)


def used(account: dict[str, Any]) -> int:
    """Return what an account has spent and holds."""
    return int(account["spent_nano"] + account["reserved_nano"])


@dataclass
class LedgerModel:
    """Accounts, holds and requests for higher limits, each a dictionary by id.

    Args:
        people: the admins' keys, and whose each is.
    """

    accounts: dict[str, dict[str, Any]] = field(default_factory=dict)
    holds: dict[str, dict[str, Any]] = field(default_factory=dict)
    people: dict[str, str] = field(default_factory=dict)
    requests: dict[str, dict[str, Any]] = field(default_factory=dict)

    # --- accounts ---------------------------------------------------------------------------------------------------

    def open_account(self, *, account_id: str, epsilon: float, delta: float) -> None:
        opened = open_filter(epsilon, delta)
        balances = {"capacity_nano": opened.capacity_nano, "spent_nano": 0, "reserved_nano": 0}
        self.accounts[account_id] = {"filter": opened, "epsilon": epsilon, **balances, "frozen": False, "log": []}
        self._log(account_id, "open", amount=opened.capacity_nano)

    def lower_limit(self, *, account_id: str, epsilon: float, **_: Any) -> None:
        account = self.accounts[account_id]
        require(epsilon < account["epsilon"], "invalid_input")
        self._set_limit(account, epsilon)
        account["frozen"] = account["frozen"] or used(account) > account["capacity_nano"]
        self._log(account_id, "limit", amount=account["capacity_nano"])

    def _set_limit(self, account: dict[str, Any], epsilon: float) -> None:
        moved = account["filter"].at_limit(epsilon, used(account))
        account |= {"filter": moved, "epsilon": epsilon, "capacity_nano": moved.capacity_nano}

    def set_frozen(self, *, account_id: str, frozen: bool, **_: Any) -> None:
        account = self.accounts[account_id]
        if account["frozen"] == frozen:
            return
        require(frozen or used(account) <= account["capacity_nano"], "conflict")
        account["frozen"] = frozen
        self._log(account_id, "freeze")

    def request_raise(
        self, *, account_id: str, epsilon: float, requested_with: str, now: datetime, made: str, **_: Any
    ) -> str:
        before = self.accounts[account_id]["epsilon"]
        require(epsilon > before, "invalid_input")
        require(requested_with in self.people, "forbidden")
        of_account = [row for row in self.requests.values() if row["account_id"] == account_id]
        require(not any(self._waits(row, now) for row in of_account), "conflict")
        terms = {"account_id": account_id, "epsilon_before": before, "epsilon": epsilon, "at": now}
        self.requests[made] = {**terms, "state": "pending", "requested_with": requested_with, "decided_with": None}
        return made

    def approve_raise(self, *, request_id: str, decided_with: str, now: datetime, **_: Any) -> None:
        request = self.requests[request_id]
        require(decided_with in self.people, "forbidden")
        person = self.people[decided_with]
        if request["state"] == "approved" and self.people[request["decided_with"]] == person:
            return
        require(self._waits(request, now), "conflict")
        require(person != self.people[request["requested_with"]], "forbidden")
        account_id, epsilon = request["account_id"], request["epsilon"]
        account = self.accounts[account_id]
        require(account["epsilon"] == request["epsilon_before"], "conflict")
        self._set_limit(account, epsilon)
        self._log(account_id, "limit", amount=account["capacity_nano"])
        request["state"], request["decided_with"] = "approved", decided_with

    def decline_raise(self, *, request_id: str, decided_with: str, **_: Any) -> None:
        request = self.requests[request_id]
        require(decided_with in self.people, "forbidden")
        require(request["state"] != "approved", "conflict")
        if request["state"] == "declined":
            return
        request["state"], request["decided_with"] = "declined", decided_with

    def _waits(self, request: dict[str, Any], now: datetime) -> bool:
        waited: timedelta = now - request["at"]
        return request["state"] == "pending" and waited < timedelta(days=REQUEST_DAYS)

    def left(self, account_id: str) -> int:
        account = self.accounts[account_id]
        return max(account["capacity_nano"] - used(account), 0)

    # --- holds ------------------------------------------------------------------------------------------------------

    def hold(self, *, account_id: str, job_id: str, amount_nano: int, made: str, **_: Any) -> str:
        account = self.accounts[account_id]
        require(amount_nano > 0, "invalid_input")
        require(not account["frozen"], "account_frozen")
        require(used(account) + amount_nano <= account["capacity_nano"], "insufficient_budget")
        require(all(hold["job_id"] != job_id for hold in self.holds.values()), "conflict")
        facts = {"account_id": account_id, "job_id": job_id, "state": "held", "amount_nano": amount_nano}
        zeros = dict.fromkeys(("charged_nano", "captured_nano", "attempt", "armed_attempt"), 0)
        self.holds[made] = {**facts, **zeros, "released": {}}
        account["reserved_nano"] += amount_nano
        self._log(account_id, "hold", made, amount=amount_nano)
        return made

    def fence(self, *, hold_id: str, attempt: int, **_: Any) -> None:
        hold = self.holds[hold_id]
        require(attempt >= hold["attempt"] and hold["state"] in OPEN, "stale_attempt")
        hold["attempt"] = attempt

    def arm(self, *, hold_id: str, attempt: int, **_: Any) -> None:
        hold = self._of_attempt(hold_id, attempt)
        require(hold["state"] in OPEN, "stale_attempt")
        if hold["armed_attempt"] == attempt:
            return
        require(hold["state"] == "armed" or not self.accounts[hold["account_id"]]["frozen"], "account_frozen")
        hold["state"], hold["armed_attempt"] = "armed", attempt
        self._log(hold["account_id"], "arm", hold_id)

    def charge(
        self,
        *,
        hold_id: str,
        attempt: int,
        amount_nano: int,
        stage: str,
        event: dict[str, int],
        paid_as_whole: int | None = None,
        **_: Any,
    ) -> int:
        require(amount_nano > 0, "invalid_input")
        hold = self._of_attempt(hold_id, attempt)
        require(hold["state"] in OPEN, "stale_attempt")
        require(hold["armed_attempt"] == attempt, "conflict")
        made = hold["released"].get(stage, 0)
        if paid_as_whole is not None:
            amount_nano = 0 if made else amount_nano
            made += event["count"]
            require(made <= paid_as_whole, "hold_exhausted")
        require(hold["charged_nano"] + amount_nano <= hold["amount_nano"], "hold_exhausted")
        hold["charged_nano"] += amount_nano
        if paid_as_whole is not None:
            hold["released"][stage] = made
        self._log(hold["account_id"], "charge", hold_id, amount=amount_nano)
        charged: int = hold["charged_nano"]
        return charged

    def capture(self, *, hold_id: str, attempt: int, artifact_sha256: str | None, **_: Any) -> None:
        hold = self._of_attempt(hold_id, attempt)
        if hold["state"] == "captured" and hold["sha"] == artifact_sha256:
            return
        require(hold["state"] == "armed", "conflict")
        require(artifact_sha256 is None or hold["charged_nano"] > 0, "conflict")
        hold["state"], hold["captured_nano"], hold["sha"] = "captured", hold["charged_nano"], artifact_sha256
        self.accounts[hold["account_id"]]["spent_nano"] += hold["charged_nano"]
        self.accounts[hold["account_id"]]["reserved_nano"] -= hold["amount_nano"]
        self._log(hold["account_id"], "capture", hold_id, amount=hold["charged_nano"])

    def return_hold(self, *, hold_id: str, **_: Any) -> None:
        hold = self.holds[hold_id]
        if hold["state"] == "returned":
            return
        require(hold["state"] == "held", "conflict")
        hold["state"] = "returned"
        self.accounts[hold["account_id"]]["reserved_nano"] -= hold["amount_nano"]
        self._log(hold["account_id"], "return", hold_id, amount=hold["amount_nano"])

    def settle(self, *, hold_id: str, attempt: int, **_: Any) -> None:
        hold = self.holds[hold_id]
        require(attempt == hold["attempt"], "stale_attempt")
        if hold["state"] in ("held", "returned"):
            self.return_hold(hold_id=hold_id)
        else:
            self.capture(hold_id=hold_id, attempt=attempt, artifact_sha256=None)

    def _of_attempt(self, hold_id: str, attempt: int) -> dict[str, Any]:
        hold = self.holds[hold_id]
        require(attempt == hold["attempt"] and attempt >= 1, "stale_attempt")
        return hold

    def _log(
        self, account_id: str, kind: str, hold_id: str | None = None, *, amount: int = 0, job_id: str | None = None
    ) -> None:
        account = self.accounts[account_id]
        job_id = self.holds[hold_id]["job_id"] if hold_id else job_id
        balances = (account["capacity_nano"], account["spent_nano"], account["reserved_nano"])
        account["log"].append((kind, hold_id, job_id, amount, *balances))
