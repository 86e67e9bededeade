"""A state machine that runs the ledger and the jobs on a real database, beside the dictionaries of `model`.

After every step the tables must equal the model, and every invariant must hold for the raw rows. Refused, crashed and
repeated commands must leave every table unchanged.
"""

import copy
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from service import ledger
from service.db.job_tables import FailureCode
from service.db.session import transaction
from service.errors import LedgerCorruption
from tests.service.ledger.machine_place import Command, Outcome, Place
from tests.service.ledger.machine_requests import PAID_AS_WHOLE, WORKERS, Requests
from tests.service.ledger.machine_rows import Dump, Fault, check_invariants, dump_of, promise, view_of
from tests.service.ledger.machine_world import BEGINNING, populate
from tests.service.ledger.model import OPEN, Refused, used
from tests.service.ledger.model_jobs import ATTEMPTS_MAX, ENDED, LEASE_SECONDS, Model
from workers.supervise.reconcile import reconcile

HISTORY_SHOWN = 20
# Commands that write a time or a counter, which the model does not have.
SOFT = frozenset({"heartbeat", "drop_lease", "report_progress", "fence"})
# The outcome of a race must not change what is drawn later, so every rule draws a seed.
DICE = st.builds(random.Random, st.integers(0, 2**32 - 1))


def predict(model: Model, command: Command, now: datetime, made: Any) -> tuple[Outcome, Model]:
    """Return the outcome of a command on the model, and the model after it."""
    after = copy.deepcopy(model)
    try:
        return ("ok", getattr(after, command.name)(**command.args, now=now, made=made)), after
    except Refused as refused:
        return ("refused", refused.code), model


def difference(seen: dict[str, dict[Any, Any]], expected: dict[str, dict[Any, Any]]) -> str:
    """Describe the differences, for readers of a counterexample."""
    lines = [
        f"{part} {key}: is {seen[part].get(key)}, should be {expected[part].get(key)}"
        for part in expected
        for key in {**expected[part], **seen[part]}
        if seen[part].get(key) != expected[part].get(key)
    ]
    return "; ".join(lines)


class LedgerMachine(Requests, RuleBasedStateMachine):
    """Random lives of accounts, holds, jobs, attempts and workers.

    Args:
        place: the database.
        focus: commands that are chosen before all others, to search in one corner.
    """

    def __init__(self, place: Place, focus: tuple[str, ...] = ()) -> None:
        super().__init__(Model(), focus)
        place.empty(place.engine)
        self.place, self.now = place, BEGINNING
        self.live: dict[str, int] = {}  # the attempts of living workers, by job
        self.sent: list[Command] = []  # all commands so far, to be repeated
        self.journal: dict[str, int] = {}  # the price of releases made after an acknowledged charge, by hold
        self.steps = Counter[str]()  # releases of the stage that is priced as a whole, by hold
        self.history: list[str] = []
        self.sound = False  # until the accounts are open, and while a step runs

    # --- the beginning and the end ----------------------------------------------------------------------------------

    @initialize(dice=DICE)
    def open_accounts(self, dice: random.Random) -> None:
        populate(self.place.factory, self.model, 2, self.now)
        self.dump = dump_of(self.place.factory)
        self._check_view()
        for _ in range(dice.randint(1, 3)):
            self._do(self._submission(dice))
        for job_id in list(self.model.jobs)[:1] if dice.random() < 0.5 else []:
            while self.model.jobs[job_id]["state"] not in ENDED:
                self._advance(dice, job_id)

    def teardown(self) -> None:
        """Require that every accepted job ends, and that the log can be read."""
        if not self.sound:
            return
        for job_id, job in list(self.model.jobs.items()):
            if job["state"] not in ENDED:
                self._do(Command("request_cancel", {"job_id": job_id}))
        self.now += timedelta(seconds=LEASE_SECONDS)
        self._reconcile(send=lambda *_: None)
        for job_id, job in list(self.model.jobs.items()):
            if job["state"] not in ENDED:  # it has paid for something; let the attempt that publishes it fail
                self._do(Command("claim", {"worker": WORKERS[0], "job_id": job_id}))
                failed = {"attempt": job["attempt"] + 1, "failure_code": FailureCode.TRAINING_FAILED}
                self._do(Command("finish_failed", {"job_id": job_id, **failed}))
        promise(all(job["state"] in ENDED for job in self.model.jobs.values()), "a job never ends")
        for account_id, account in self.model.accounts.items():
            with transaction(self.place.factory, read_only=True) as session:
                log = ledger.entries(session, account_id, 0, 1000)
            promise(len(log) == len(account["log"]), "I8: the log does not read back whole")

    # --- rules ------------------------------------------------------------------------------------------------------

    @rule(dice=DICE, steps=st.integers(1, 4))
    def work(self, dice: random.Random, steps: int) -> None:
        """A job, or a hold without a job, makes its next steps."""
        going = [job_id for job_id, job in self.model.jobs.items() if job["state"] not in ENDED]
        raw = [key for key, hold in self.model.holds.items() if hold["job_id"] not in self.model.jobs]
        if not going + raw:
            return
        chosen = dice.choice(going + raw)
        for _ in range(steps):
            if chosen in self.model.jobs:
                self._advance(dice, chosen)
            else:
                self._advance_hold(dice, chosen)

    @rule(dice=DICE)
    def ask(self, dice: random.Random) -> None:
        """Any command, valid or not."""
        self._do(self._command(dice))

    @rule(dice=DICE)
    def tell(self, dice: random.Random) -> None:
        """A worker reports about a job."""
        if self.model.jobs:
            self._do(self._about_job(dice, dice.choice(list(self.model.jobs))))

    @rule(dice=DICE)
    def govern(self, dice: random.Random) -> None:
        """An admin changes a limit or the freeze switch."""
        account_id = dice.choice(list(self.model.accounts))
        self._do(self._limit(dice, account_id) if dice.random() < 0.7 else self._switch(dice, account_id))

    @rule(dice=DICE)
    def submit(self, dice: random.Random) -> None:
        self._do(self._submission(dice))

    @rule(dice=DICE, statements=st.integers(0, 12))
    def crash(self, dice: random.Random, statements: int) -> None:
        """A process dies before its commit; sometimes the command is repeated."""
        command = self._command(dice)
        self._do(command, crash_after=statements)
        if dice.random() < 0.5:
            self._do(command)

    @rule(dice=DICE, times=st.integers(1, 3))
    def redeliver(self, dice: random.Random, times: int) -> None:
        """Old commands arrive again: late, several times and out of order."""
        newest_first = self.sent[:-9:-1] if dice.random() < 0.5 else self.sent[::-1]
        for _ in range(times):
            self._do(dice.choice(newest_first))

    @rule(dice=DICE)
    def race(self, dice: random.Random) -> None:
        """Two commands about the same thing run at once: the result is that of one of the two serial orders."""
        about = self._subject(dice)
        first = self._command(dice, about)
        again = dice.random() < 0.5
        self._race(first, first if again else self._command(dice, about))

    @rule(seconds=st.sampled_from([1, LEASE_SECONDS - 5, LEASE_SECONDS, LEASE_SECONDS, 400, 7 * 24 * 3600]))
    def wait(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)

    @rule(dice=DICE)
    def lose_worker(self, dice: random.Random) -> None:
        """A worker dies: its lease ends later, and its old messages may still arrive."""
        if self.live:
            del self.live[dice.choice(list(self.live))]

    @rule()
    def drain(self) -> None:
        """A machine shuts down in order: its jobs are queued again, and no budget moves."""
        for job_id, attempt in list(self.live.items()):
            self._do(Command("give_back", {"job_id": job_id, "attempt": attempt}))
        self.live.clear()

    @rule(broker_down=st.booleans())
    def recover(self, broker_down: bool) -> None:
        """The reconciler runs."""

        def send(*_: Any) -> None:
            if broker_down:
                raise ConnectionError

        self._reconcile(send)
        waiting = self.model.claimable(self.now)
        trainings = [job_id for job_id in waiting if self.model.jobs[job_id]["kind"] == "train"]
        for job_id in set(waiting) - set(trainings[1:]):  # a message about one training starts the oldest
            since = max(
                self.model.jobs[job_id]["lease_until"] or BEGINNING, self.now - timedelta(seconds=LEASE_SECONDS)
            )
            rung = [row["created_at"] for row in self.dump["outbox"] if row["args"][0] == job_id]
            promise(max(rung) >= since, "no worker will look for a waiting job")
        if not broker_down:
            promise(all(row["sent_at"] is not None for row in self.dump["outbox"]), "a message was not sent")

    # --- one step ---------------------------------------------------------------------------------------------------

    @contextmanager
    def _step(self) -> Iterator[None]:
        """Let a second pass; report a fault with the steps before it."""
        self.now += timedelta(seconds=1)
        self.sound = False
        try:
            yield
        except Fault as fault:
            steps = "\n  ".join(self.history[-HISTORY_SHOWN:])
            raise Fault(f"{fault}\nThe last steps were:\n  {steps}") from None
        self.sound = True

    def _do(self, command: Command, *, crash_after: int | None = None) -> None:
        """Run a command, compare the outcome with the model's, and check everything."""
        with self._step():
            outcome = self.place.run(command, self.now, crash_after=crash_after)
            self.history.append(f"{command.name} {command.args} -> {outcome}")
            after = self.model
            if outcome[0] != "crashed":
                expected, after = predict(self.model, command, self.now, _made(outcome))
                promise(outcome == expected, f"the outcome of {command.name} is {outcome}, should be {expected}")
            self._take(after, dump_of(self.place.factory), soft=command.name in SOFT)
            self._note(command, outcome)

    def _race(self, first: Command, second: Command) -> None:
        """Run two commands at once and find the serial order that explains their outcomes."""
        with self._step():
            one, two = self.place.run_together([first, second], self.now)
            both = f"{first.name} {first.args} -> {one} beside {second.name} {second.args} -> {two}"
            self.history.append(both)
            dump = dump_of(self.place.factory)
            seen = view_of(dump)
            explained = [after for after in self._explanations((first, one), (second, two)) if after.view() == seen]
            promise(bool(explained), f"no serial order explains {both}")
            self._take(explained[0], dump, soft=bool(SOFT & {first.name, second.name}))
            self._note(first, one)
            self._note(second, two)

    def _explanations(self, *pairs: tuple[Command, Outcome]) -> Iterator[Model]:
        """Yield the model after each serial order in which both commands end as they did."""
        for order in (pairs, pairs[::-1]):
            for skipping in (False, True):  # a claim skips a locked row, and so may find nothing
                model = self.model
                for command, outcome in order:
                    if skipping and command.name == "claim" and outcome == ("ok", None):
                        continue
                    expected, model = predict(model, command, self.now, _made(outcome))
                    if expected != outcome:
                        break
                else:
                    yield model

    def _take(self, after: Model, dump: Dump, *, soft: bool) -> None:
        """Make `after` the model and `dump` the tables, and check one against the other."""
        if after.view() == self.model.view() and not soft:
            promise(dump == self.dump, "I12: a refused, crashed or repeated command changed a row")
        check_invariants(dump, self.dump)
        touched = [key for key, row in after.accounts.items() if row != self.model.accounts[key]]
        self.model, self.dump = after, dump
        self._check_view()
        for account_id in touched:
            self._check_balance(account_id)

    def _check_view(self) -> None:
        seen, expected = view_of(self.dump), self.model.view()
        promise(seen == expected, f"the tables are not what the model says: {difference(seen, expected)}")

    def _check_balance(self, account_id: str) -> None:
        """I13: shown balances are never negative, and 0 on an account whose limit is below its spending."""
        with transaction(self.place.factory, read_only=True) as session:
            row = ledger.get_account(session, account_id)
            shown, frozen = ledger.balance_of(row), row.frozen
        account = self.model.accounts[account_id]
        promise(shown.left_nano == self.model.left(account_id), "I13: the shown rest is wrong")
        numbers = (shown.spent_epsilon, shown.reserved_epsilon, shown.left_epsilon, shown.affordable_epsilon)
        promise(min(numbers) >= 0, "I13: a negative epsilon is shown")
        if used(account) > account["capacity_nano"]:
            promise(frozen and shown.left_nano == 0, "I13: an overspent account is not frozen at 0")
            promise(shown.left_epsilon == shown.affordable_epsilon == 0, "I13: an overspent account has epsilon left")

    def _note(self, command: Command, outcome: Outcome) -> None:
        """Record what the workers know now."""
        self.sent.append(command)
        if outcome[0] != "ok":
            return
        if command.name == "claim" and outcome[1] is not None:
            job_id, attempt = outcome[1]
            self.live[job_id] = attempt
        if command.name == "charge":
            args = command.args
            hold_id = args["hold_id"] if "hold_id" in args else self.model.jobs[args["job_id"]]["hold_id"]
            steps = args["event"]["count"] if "paid_as_whole" in args else 0
            if not steps or not self.steps[hold_id]:
                self.journal[hold_id] = self.journal.get(hold_id, 0) + command.args["amount_nano"]
            self.steps[hold_id] += steps
            promise(self.journal[hold_id] <= outcome[1], "I5: more was released than charged")
            promise(self.steps[hold_id] <= PAID_AS_WHOLE, "I5: more was released than was priced as a whole")
        self._forget_lost()

    def _forget_lost(self) -> None:
        """Drop attempts that were superseded or have ended."""
        self.live = {
            job_id: attempt
            for job_id, attempt in self.live.items()
            if self.model.jobs[job_id]["state"] == "running" and self.model.jobs[job_id]["attempt"] == attempt
        }

    def _reconcile(self, send: Callable[..., None]) -> None:
        with self._step():
            self.history.append("reconcile")
            after = copy.deepcopy(self.model)
            for job_id in after.claimable(self.now):
                job = after.jobs[job_id]
                over = job["cancel_requested"] or job["early"] or job["attempts_lost"] + 1 >= ATTEMPTS_MAX
                if job["state"] == "running" and over:
                    claimed = after.claim(worker="reconciler", now=self.now, job_id=job_id)
                    if claimed is not None:  # one more attempt publishes what was paid for
                        after.give_back(job_id=job_id, attempt=claimed[1])
            try:
                reconcile(self.place.settings, self.place.factory, send=send, now=self.now)
            except LedgerCorruption as error:  # the ledger's own check came before the model's
                raise Fault("the ledger contradicts itself") from error
            self._take(after, dump_of(self.place.factory), soft=True)
            self._forget_lost()

    def _advance(self, dice: random.Random, job_id: str) -> None:
        """Make the next step of a job."""
        job = self.model.jobs[job_id]
        attempt = self.live.get(job_id)
        if job["state"] in ENDED:
            return
        if attempt is None:
            if job["state"] == "running":
                self.now = max(self.now, job["lease_until"])
            self._do(Command("claim", {"worker": dice.choice(WORKERS), "job_id": job_id}))
            return
        if job["kind"] == "sample":
            self._do(self._end_of_sample(dice, job_id, attempt))
            return
        hold = self.model.holds[job["hold_id"]]
        if hold["armed_attempt"] != attempt:
            self._do(Command("arm", {"hold_id": self.model.jobs[job_id]["hold_id"], "attempt": attempt}))
        elif hold["charged_nano"] == 0 or (hold["charged_nano"] < hold["amount_nano"] and dice.random() < 0.5):
            self._do(self._charge(dice, self.model.jobs[job_id]["hold_id"], attempt))
        else:
            self._do(self._publication(dice, job_id, attempt))

    def _advance_hold(self, dice: random.Random, hold_id: str) -> None:
        """Make the next step of a hold without a job: fence it, then arm it, then run any command."""
        hold = self.model.holds[hold_id]
        attempt = max(hold["attempt"], 1)
        if hold["state"] not in OPEN or hold["armed_attempt"] == attempt:
            self._do(self._about_hold(dice, hold_id))
        else:
            self._do(Command("fence" if hold["attempt"] == 0 else "arm", {"hold_id": hold_id, "attempt": attempt}))


def _made(outcome: Outcome) -> Any:
    """Return the identifiers that production chose, for the model."""
    return outcome[1] if outcome[0] == "ok" else ("(none)", "(none)")
