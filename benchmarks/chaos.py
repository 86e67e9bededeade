"""Kill random processes of the service at random moments, while clients use it; then audit it.

    python -m benchmarks.chaos --json FILE

Everything is real: `obscura up`, its runners, the HTTP API, and PostgreSQL, Redis and Celery workers. Dead processes
are restarted. After the kills every job comes to its end; the service is stopped in order, restarted once, and audited.

* embedded: SQLite, one process.
* celery: PostgreSQL, Redis and a Celery worker.
* cluster: two APIs and two workers share a data folder. PostgreSQL, then Redis, is away for half a minute.
* storage: two APIs and three workers share only a bucket of an S3 server (`benchmarks.chaos_storage`).
* restore: scenarios with an older, wrong or missing database, or a lost or full disk (`benchmarks.chaos_restores`).

The exit status is 1 if the audit finds a fault (`benchmarks.chaos_audit`); in mode restore if a release is lost,
spending is refunded, another account accepts known images, or a stale database does not start locked.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.chaos_audit import audit
from benchmarks.chaos_clients import PUBLIC_PICTURES, Asker, Customer, Heard, Uploader, push_random, set_up, trainings
from benchmarks.chaos_restores import SCENARIOS, restores
from benchmarks.chaos_services import Mode, Services, installation
from benchmarks.results import machine, parser_of, write_json
from obscura.client import Client
from scripts.swift_server import SwiftServer
from scripts.with_services import PostgresServer, RedisServer

MODES: tuple[Mode, ...] = ("embedded", "celery", "cluster")
STORAGE: Mode = "storage"  # needs an S3 server to be installed
RESTORE = "restore"
_Server = PostgresServer | RedisServer | SwiftServer
OUTAGE_SECONDS = 30.0  # of PostgreSQL, then Redis, then S3
CUSTOMERS = 2
RECOVERY_SECONDS_MAX = 900.0  # from the last kill to the end of the last job
KEEP_SECONDS = 0.2
KILLS_IN_AN_OUTAGE = 3
# The average pause between two kills: this many times the last start of an API, divided by the number of APIs.
PAUSES_PER_START, PAUSE_SECONDS_MIN = 1.5, 2.0
EVERYTHING = "everything"  # a kill of all processes at once, as when the machine fails
SUMMED = (
    *("kills", "jobs_accepted", "jobs_unfinished", "undercharged", "artifacts_without_capture", "uploads_lost"),
    *("releases_lost", "orphans"),
)
# How often each living role is chosen. In mode embedded the dispatcher is a part of the API.
WEIGHTS = {"api": 3, "worker": 2, "dispatcher": 3, "runner": 6, "s3": 1, EVERYTHING: 1}
SPARED = 0.8  # how often an API that is starting is spared, because otherwise it would never serve


def killing(services: Services, servers: tuple[_Server, ...], wanted: int, dice: random.Random) -> Counter[str]:
    """Kill `wanted` times; return the number of kills by role. A kill of everything counts once.

    Pauses are exponential, so that every moment is as likely. The servers' outages are spread evenly among the kills,
    which continue meanwhile.
    """
    kills: Counter[str] = Counter()
    outages = [(wanted * (number + 1) // (len(servers) + 1), server) for number, server in enumerate(servers)]
    while kills.total() < wanted:
        if outages and kills.total() >= outages[0][0]:
            with away(outages.pop(0)[1]):
                kills += killing(services, (), min(KILLS_IN_AN_OUTAGE, wanted - kills.total()), dice)
        pause_seconds = max(PAUSES_PER_START * services.start_seconds / len(services.urls), PAUSE_SECONDS_MIN)
        wake_at = time.monotonic() + dice.expovariate(1 / pause_seconds)
        while time.monotonic() < wake_at:
            services.keep()
            time.sleep(min(KEEP_SECONDS, max(wake_at - time.monotonic(), 0.0)))
        role, doomed = choose(services, dice)
        killed = 0
        for pid in doomed:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed += 1
        if killed:
            kills[role] += 1
            if kills.total() % 10 == 0:
                print(f"  {kills.total()} kills: {dict(kills)}", flush=True)
    return kills


@contextmanager
def away(server: _Server) -> Iterator[None]:
    """Stop a server without notice; start it again after half a minute, or at the end of the block if that is later."""
    print(f"  {type(server).__name__} is away", flush=True)
    back_at = time.monotonic() + OUTAGE_SECONDS
    server.stop()
    try:
        yield
        time.sleep(max(0.0, back_at - time.monotonic()))
    finally:
        server.start()


def choose(services: Services, dice: random.Random) -> tuple[str, list[int]]:
    """Return a role and the process ids to kill now; no ids if none may be killed."""
    alive = services.victims()
    roles = [*alive, EVERYTHING]
    if not services.ready and dice.random() < SPARED:
        roles = [role for role in alive if role != "api"]
    if not roles:
        return EVERYTHING, []
    role = dice.choices(roles, weights=[WEIGHTS[name] for name in roles])[0]
    return role, [dice.choice(alive[role])] if role != EVERYTHING else [pid for pids in alive.values() for pid in pids]


def rampage(mode: Mode, wanted: int, seed: int, folder: Path) -> dict[str, Any]:
    """Run one mode; return its figures."""
    dice = random.Random(f"{mode} {seed}")
    began = time.monotonic()
    with installation(mode, folder) as installed:
        settings, logs = installed.settings, folder / "chaos"
        logs.mkdir(parents=True)
        services = Services(installed, logs)
        try:
            services.start()
            token = settings.admin_key_path.read_text("ascii").strip()
            with Client(services.urls[0], token) as client:
                public_id = push_random(client, 1, PUBLIC_PICTURES, name="pictures", visibility="public")
                asked = trainings(set_up(client), public_id)
            heard, closing = Heard(), threading.Event()
            deadline = [float("inf")]
            shared: dict[str, Any] = {"heard": heard, "closing": closing, "until": lambda: deadline[0]}
            customers: list[Asker] = []
            for number in range(CUSTOMERS):
                first = number % len(services.urls)
                urls = services.urls[first:] + services.urls[:first]
                customers.append(Customer(urls, token, trainings=asked, seed=dice.randrange(2**31), **shared))
            customers.append(Uploader(services.urls, token, seed=dice.randrange(2**31), **shared))
            for customer in customers:
                customer.start()
            print(f"{mode}: started in {services.start_seconds:.1f} s", flush=True)
            kills = killing(services, installed.servers, wanted, dice)
            killed_at = time.monotonic()
            deadline[0] = killed_at + RECOVERY_SECONDS_MAX
            closing.set()
            while any(customer.is_alive() for customer in customers):
                services.keep()
                time.sleep(KEEP_SECONDS)
            recovery_seconds = time.monotonic() - killed_at
            in_order = services.stop()
            services.start()  # a start cleans up after kills
            in_order = services.stop() and in_order
        finally:
            services.stop()
        found = audit(settings, heard.jobs, heard.uploads)
    violated = not (found.sound and in_order and not heard.duplicated and kills.total() >= wanted)
    return {
        "kills": kills.total(),
        "kills_by_role": dict(sorted(kills.items())),
        "jobs_accepted": len(heard.jobs),
        **asdict(found),
        "requests_repeated": heard.repeated,
        "requests_duplicated": heard.duplicated,
        "cancels": heard.cancels,
        "uploads": len(heard.uploads),
        "uploads_repeated": heard.uploads_repeated,
        "outages": len(installed.servers),
        "refusals": dict(heard.refusals),
        "stopped_in_order": in_order,
        "starts": services.starts,
        "recovery_seconds": round(recovery_seconds, 1),
        "seconds": round(time.monotonic() - began, 1),
        "violated": violated,
    }


def together(modes: dict[str, dict[str, Any]]) -> dict[str, Any]:
    totals: dict[str, Any] = {name: sum(figures[name] for figures in modes.values()) for name in SUMMED}
    totals["ledger_verified"] = all(figures["ledger_verified"] for figures in modes.values())
    totals["violated"] = any(figures["violated"] for figures in modes.values())
    return totals


def main(arguments: list[str] | None = None) -> int:
    """Run the modes, print their figures and write them as JSON; return the exit status."""
    parser = parser_of(__doc__)
    parser.add_argument("--mode", choices=[*MODES, STORAGE, "all", RESTORE], default="all", help="all: the first three")
    parser.add_argument("--kills", type=int, default=100, help="in each mode")
    parser.add_argument("--scenarios", type=int, default=SCENARIOS, help=f"in mode {RESTORE}")
    parser.add_argument("--at-once", type=int, default=1, help="scenarios that run at the same time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="an empty folder for data and logs; default: a temporary one")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="obscura-chaos-") as temporary:
        folder = options.keep or Path(temporary)
        if options.mode == RESTORE:
            at_once = options.at_once
            results = restores(options.scenarios, options.seed, folder, lambda it: show(asdict(it)), at_once=at_once)
            show({name: value for name, value in results.items() if name != "rows"})
        else:
            modes: dict[str, dict[str, Any]] = {}
            for mode in MODES if options.mode == "all" else (options.mode,):
                modes[mode] = rampage(mode, options.kills, options.seed, folder / mode)
                show({"mode": mode} | {name: modes[mode][name] for name in (*SUMMED, "states", "ledger_verified")})
                if modes[mode]["violated"]:
                    print(json.dumps(modes[mode], indent=2))
            results = together(modes) | {"modes": modes}
    write_json(options.json, results | {"seed": options.seed} | machine())
    return int(results["violated"])


def show(figures: dict[str, Any]) -> None:
    print(", ".join(f"{name} {value}" for name, value in figures.items()), flush=True)


if __name__ == "__main__":
    sys.exit(main())
