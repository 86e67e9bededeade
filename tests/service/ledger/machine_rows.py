"""The tables' rows, and checks of invariants I1-I8 and I13 on them without the model or the ledger's code."""

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC
from typing import Any

from sqlalchemy import RowMapping, select

from service.db.base import Base
from service.db.session import SessionFactory, transaction
from tests.service.ledger.model import COLUMNS, in_columns

TABLES = (*("accounts", "entries", "holds", "decisions", "jobs", "releases", "samples", "idempotency", "outbox"),)
ORDER = {"entries": ("account_id", "sequence"), "idempotency": ("principal", "key")}
CHANGES_BY_ITSELF = frozenset(
    {"state", "attempt", "charged_nano", "armed_attempt", "captured_nano", "last_sequence", "updated_at"}
)
Dump = dict[str, list[RowMapping]]


class Fault(AssertionError):
    """The system under test violates an invariant."""


def promise(condition: bool, broken: str) -> None:
    """Raise `Fault` unless a condition holds."""
    if not condition:
        raise Fault(broken)


def dump_of(factory: SessionFactory) -> Dump:
    """Read every row of TABLES in one transaction."""
    dump: Dump = {}
    with transaction(factory, read_only=True) as session:
        for name in TABLES:
            table = Base.metadata.tables[name]
            order = [table.c[column] for column in ORDER.get(name, ("id",))]
            dump[name] = list(session.execute(select(table).order_by(*order)).mappings().all())
    return dump


def view_of(dump: Dump) -> dict[str, dict[Any, Any]]:
    """Return the rows in the shape of `model_jobs.Model.view`."""
    log: dict[str, list[Any]] = {row["id"]: [] for row in dump["accounts"]}
    for row in dump["entries"]:
        balances = (row["capacity_nano"], row["spent_nano"], row["reserved_nano"])
        log[row["account_id"]].append((row["kind"], row["hold_id"], row["job_id"], row["amount_nano"], *balances))
    tables = {name: {row["job_id" if name == "samples" else "id"]: row for row in dump[name]} for name in COLUMNS}
    keys = {(row["principal"], row["key"]): row["resource_id"] for row in dump["idempotency"]}
    return {**in_columns(tables), "log": log, "keys": keys}


def check_invariants(dump: Dump, before: Dump) -> None:
    """Check the invariants of a committed state, and of the step from the one before it.

    Raises:
        Fault: names the invariant.
    """
    logs: dict[str, list[RowMapping]] = {row["id"]: [] for row in dump["accounts"]}
    for entry in dump["entries"]:
        logs[entry["account_id"]].append(entry)
    for account in dump["accounts"]:
        _check_log(account, logs[account["id"]])
    by_hold: dict[str, list[RowMapping]] = {row["id"]: [] for row in dump["holds"]}
    for entry in dump["entries"]:
        if entry["hold_id"] is not None:
            by_hold[entry["hold_id"]].append(entry)
    for hold in dump["holds"]:
        _check_hold(hold, by_hold[hold["id"]])
    _check_releases(dump)
    _check_jobs(dump)
    _check_step(dump, before)


def _check_log(account: RowMapping, log: list[RowMapping]) -> None:
    """I1, I2, I8, I10, I13: recompute an account from its log."""
    spent = held = capacity = 0
    frozen, previous, amounts = False, "0" * 64, {}
    for position, entry in enumerate(log, start=1):
        kind, amount, hold_id = entry["kind"], entry["amount_nano"], entry["hold_id"]
        spent_before = spent
        if kind in ("open", "limit"):
            said = entry["details"]
            people = {said.get("requested_by"), said.get("approved_by")} - {None}
            promise(kind == "open" or amount < capacity or len(people) == 2, "a limit was raised without two people")
            capacity = amount
        if kind in ("limit", "freeze"):
            frozen = entry["details"]["frozen"]
        if kind == "hold":
            promise(not frozen and spent + held + amount <= capacity, "I1: a hold was admitted beyond the capacity")
            amounts[hold_id] = amount
            held += amount
        if kind == "capture":
            promise(entry["details"]["returned_nano"] == amounts[hold_id] - amount, "I3: the rest was not returned")
            spent += amount
        if kind in ("capture", "return"):
            promise(hold_id in amounts, "I3: a hold ended twice, or before it began")
            held -= amounts.pop(hold_id)
        fold = (capacity, spent, held)
        promise(spent >= spent_before, "I2: what is captured decreased")
        promise(min(fold) >= 0 and all(type(number) is int for number in fold), "I10: not whole, or below zero")
        promise(frozen or spent + held <= capacity, "I1: a prefix of the log is not admitted")
        promise(
            fold == (entry["capacity_nano"], entry["spent_nano"], entry["reserved_nano"]), "I8: an entry's balances"
        )
        promise(entry["sequence"] == position and entry["previous_hash"] == previous, "I8: a gap, or a broken link")
        promise(entry["hash"] == _hash_of(entry), "I8: an entry's hash")
        previous = entry["hash"]
    cached = (account["capacity_nano"], account["spent_nano"], account["reserved_nano"], bool(account["frozen"]))
    promise(cached == (capacity, spent, held, frozen), "I8: cached balances differ from the fold of the log")
    promise((account["head_sequence"], account["head_hash"]) == (len(log), previous), "I8: the head of the log")


def _check_hold(hold: RowMapping, entries: list[RowMapping]) -> None:
    """I3, I4, I5: compare a hold with its entries."""
    kinds = [entry["kind"] for entry in entries]
    ends = [entry for entry in entries if entry["kind"] in ("capture", "return")]
    promise(kinds[:1] == ["hold"] and kinds.count("hold") == 1, "I3: a hold has not one hold entry")
    promise(len(ends) <= 1 and (not ends or entries[-1] is ends[0]), "I3: more than one end, or writes after it")
    ending = {"capture": "captured", "return": "returned"}
    state = ending[ends[0]["kind"]] if ends else "armed" if "arm" in kinds else "held"
    promise(hold["state"] == state, "I3: a hold's state is not what its entries say")
    promise(state != "returned" or "arm" not in kinds, "I4: an armed hold was refunded")
    armed, charged, released = 0, 0, dict[str, int]()
    for entry in entries:
        if entry["kind"] == "arm":
            promise(entry["details"]["attempt"] > armed, "I6: an earlier attempt armed")
            armed = entry["details"]["attempt"]
        if entry["kind"] == "charge":
            promise(0 < armed == entry["details"]["attempt"], "I4: charged by an attempt that had not armed")
            charged += entry["amount_nano"]
            told, stage = entry["details"].get("released", {}), entry["details"]["stage"]
            if stage in told:
                released[stage] = released.get(stage, 0) + entry["details"]["event"]["count"]
            promise(told == released, "I5: the log counts other releases than it lists")
    promise(charged == hold["charged_nano"] <= hold["amount_nano"], "I5: charges differ from the hold, or exceed it")
    promise(hold["captured_nano"] == (charged if state == "captured" else 0), "I5: captured is not what was charged")
    promise(hold["armed_attempt"] == armed <= hold["attempt"], "I6: the armed attempt is not the current one")


def _check_releases(dump: Dump) -> None:
    """I7: there is one release for each capture that lists an artifact."""
    listed = {
        (entry["job_id"], entry["details"]["artifact_sha256"])
        for entry in dump["entries"]
        if entry["kind"] == "capture" and entry["details"]["reason"] == "published"
    }
    rows = {(row["job_id"], row["artifact_sha256"]) for row in dump["releases"]}
    promise(rows == listed, "I7: a release without the capture that lists its hash, or the reverse")
    done = {row["id"] for row in dump["jobs"] if (row["kind"], row["state"]) == ("train", "succeeded")}
    promise({row["job_id"] for row in dump["releases"]} == done, "I7: a release whose job has not succeeded")


def _check_jobs(dump: Dump) -> None:
    """I6: compare jobs with their holds."""
    holds = {row["id"]: row for row in dump["holds"]}
    for job in dump["jobs"]:
        promise((job["state"] == "running") == (job["lease_until"] is not None), "I6: running without a lease")
        ended = job["state"] in ("succeeded", "failed", "cancelled")
        if job["kind"] == "train":
            hold = holds[job["hold_id"]]
            promise(hold["attempt"] == job["attempt"], "I6: the hold is not fenced for the job's attempt")
            promise(ended == (hold["state"] in ("captured", "returned")), "I3: a job and its hold ended apart")
            of_job = [(row["id"], row["account_id"]) for row in dump["holds"] if row["job_id"] == job["id"]]
            promise(of_job == [(hold["id"], job["account_id"])], "a job has another hold, or one of another account")


def _check_step(dump: Dump, before: Dump) -> None:
    """Entries are only appended; attempts only grow; ended rows stay unchanged."""
    old = {(row["account_id"], row["sequence"]): row for row in before["entries"]}
    new = {(row["account_id"], row["sequence"]): row for row in dump["entries"]}
    promise(all(new.get(key) == row for key, row in old.items()), "I8: an entry was changed or deleted")
    for name in ("jobs", "holds"):
        rows = {row["id"]: row for row in dump[name]}
        for past in before[name]:
            promise(past["id"] in rows, f"{name}: a row is gone")
            row = rows[past["id"]]
            promise(row["attempt"] >= past["attempt"], "I6: an attempt's number decreased")
            if past["state"] in ("succeeded", "failed", "cancelled", "captured", "returned"):
                promise(row == past, f"I12: a row of {name} changed after its end")
            if name == "holds":
                fixed = [column for column in past if column not in CHANGES_BY_ITSELF]
                promise(all(row[column] == past[column] for column in fixed), "I3: a hold's terms changed")


def _hash_of(entry: Mapping[str, Any]) -> str:
    body = {name: value for name, value in entry.items() if name not in ("hash", "created_at")}
    created_at = entry["created_at"].astimezone(UTC).isoformat(timespec="microseconds")
    body |= {"version": 1, "kind": str(entry["kind"]), "created_at": created_at}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()
