"""Clients of the ledger that run jobs at the same time, in threads and processes, and time each transaction."""

from __future__ import annotations

import math
import multiprocessing
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sqlalchemy.orm import Session

from benchmarks.ledger_log import COUNT_MAX, FILTER, leave_armed, priced, stages
from service import ledger
from service.db.base import new_id
from service.db.session import SessionFactory, make_engine, make_session_factory, transaction

WARM_UP_SECONDS = 0.5  # fills caches and opens connections
PATIENCE_SECONDS = 120
Step = Callable[[Session], Any]
Timed = Callable[[Step], Any]
ARMED_PER_SECOND = 1200  # holds that wait to be captured, for all clients: more than they can capture


def one_pair(account_id: str, armed: list[str], dice: random.Random, timed: Timed) -> None:
    """Hold for a new job; capture another job's hold, which waits armed and charged. Two transactions."""
    now, planned = datetime.now(UTC), dice.randint(1, COUNT_MAX)
    held = {"amount_nano": priced(planned).price_nano, "priced_by": FILTER, "details": stages(planned)}
    captured = {"artifact_sha256": "ab" * 32, "reason": "published", "attempt": 1, "now": now}
    hold_id = armed.pop()  # IndexError: ARMED_PER_SECOND is too low for this machine
    timed(lambda s: ledger.hold(s, account_id=account_id, job_id=new_id("job"), now=now, **held))
    timed(lambda s: ledger.capture(s, hold_id=hold_id, **captured))


def one_life(account_id: str, dice: random.Random, timed: Timed) -> None:
    """Hold, fence, arm, charge, capture: five transactions, as a job takes them."""
    now = datetime.now(UTC)
    planned = dice.randint(1, COUNT_MAX)
    made = priced(dice.randint(1, planned))
    held = {"amount_nano": priced(planned).price_nano, "priced_by": FILTER, "details": stages(planned)}
    charged = {"amount_nano": made.price_nano, "stage": made.name, "event": made.event.to_json()}
    hold_id: str = timed(lambda s: ledger.hold(s, account_id=account_id, job_id=new_id("job"), now=now, **held).id)
    own = {"hold_id": hold_id, "attempt": 1, "now": now}
    timed(lambda s: ledger.fence(s, **own))
    timed(lambda s: ledger.arm(s, **own))
    timed(lambda s: ledger.charge(s, **own, **charged))
    timed(lambda s: ledger.capture(s, **own, artifact_sha256="ab" * 32, reason="published"))


@dataclass
class Times:
    """Seconds of every transaction and pair, and how many pairs there were with those of the warm-up."""

    transactions: list[float] = field(default_factory=list)
    pairs: list[float] = field(default_factory=list)
    seconds: float = 0.0
    pairs_in_all: int = 0


def throughput(
    url: str, accounts: list[str], *, clients: int, processes: int, seconds: float, seed: int
) -> dict[str, float]:
    """Run all clients together; return pairs per second, and milliseconds of transactions and pairs."""
    armed = _armed(url, accounts, clients, seconds)
    spawning = multiprocessing.get_context("spawn")
    start, reports = spawning.Barrier(processes), spawning.Queue()
    given = [(seed * clients + n, accounts[n % len(accounts)], armed[n]) for n in range(clients)]
    children = [
        spawning.Process(target=_process, args=(url, given[n::processes], seconds, start, reports))
        for n in range(processes)
    ]
    for child in children:
        child.start()
    parts: list[Times] = [reports.get(timeout=PATIENCE_SECONDS + 10 * seconds) for _ in children]
    for child in children:
        child.join()
    pairs = sorted(value for part in parts for value in part.pairs)
    transactions = sorted(value for part in parts for value in part.transactions)
    return {
        "per_second": len(pairs) / max(part.seconds for part in parts),  # until the last client's last pair has ended
        "transaction_p50_ms": 1e3 * transactions[len(transactions) // 2],
        "transaction_p99_ms": 1e3 * transactions[int(0.99 * len(transactions))],
        "pair_p99_ms": 1e3 * pairs[int(0.99 * len(pairs))],
        "pairs_in_all": sum(part.pairs_in_all for part in parts),
        "armed_before": sum(map(len, armed)),
    }


def _armed(url: str, accounts: list[str], clients: int, seconds: float) -> list[list[str]]:
    """Return for each client the holds of its account that it may capture."""
    engine = make_engine(url)
    count = math.ceil(ARMED_PER_SECOND / clients * (seconds + WARM_UP_SECONDS))
    factory = make_session_factory(engine)
    found = [leave_armed(factory, accounts[n % len(accounts)], count) for n in range(clients)]
    engine.dispose()
    return found


def _process(url: str, given: list[tuple[int, str, list[str]]], seconds: float, start: Any, reports: Any) -> None:
    """One process: a thread for each client's seed, account and armed holds, all on one engine."""
    engine = make_engine(url, pool_size=len(given))
    factory = make_session_factory(engine)
    pairs_before = 0
    for phase_seconds in (WARM_UP_SECONDS, seconds):
        made = [Times() for _ in given]
        start.wait()
        started = time.monotonic()
        threads = [
            threading.Thread(
                target=_client,
                args=(factory, account_id, armed, random.Random(seed), started + phase_seconds),
                kwargs={"times": times},
            )
            for (seed, account_id, armed), times in zip(given, made, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        whole = Times(seconds=time.monotonic() - started, pairs_in_all=pairs_before)
        for times in made:
            whole.pairs += times.pairs
            whole.transactions += times.transactions
        whole.pairs_in_all += len(whole.pairs)
        pairs_before = whole.pairs_in_all
        start.wait()
    engine.dispose()
    reports.put(whole)


def _client(
    factory: SessionFactory, account_id: str, armed: list[str], dice: random.Random, until: float, *, times: Times
) -> None:
    def timed(step: Step) -> Any:
        started = time.perf_counter()
        with transaction(factory) as session:
            result = step(session)
        times.transactions.append(time.perf_counter() - started)
        return result

    while time.monotonic() < until:
        started = time.perf_counter()
        one_pair(account_id, armed, dice, timed)
        times.pairs.append(time.perf_counter() - started)
