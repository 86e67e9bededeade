"""Random commands for the state machine, valid and invalid."""

import random
from typing import Any

from service.db.base import release_id_of
from service.jobs import FailureCode
from tests.service.ledger.machine_place import Command
from tests.service.ledger.machine_world import ADMINS, EPSILONS, LIMITS
from tests.service.ledger.model_jobs import Model

WORKERS = ("anna", "bert", "cleo")
SHAS = ("ab" * 32, "cd" * 32)
PAID_AS_WHOLE = 6  # releases of a stage that is priced as a whole


class Requests:
    """Draws commands about the rows of a model.

    Args:
        model: of accounts, holds and jobs.
        focus: commands that are chosen before all others, to search in one corner.
    """

    def __init__(self, model: Model, focus: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.focus, self.raw = model, focus, 0

    def _choose(self, dice: random.Random, names: list[str]) -> str:
        """Choose a command, mostly one of those in focus."""
        wanted = [name for name in names if name in self.focus]
        return dice.choice(wanted if wanted and dice.random() < 0.8 else names)

    def _subject(self, dice: random.Random) -> tuple[str, str]:
        """Choose the subject of a command."""
        raw = [("hold", key) for key, hold in self.model.holds.items() if hold["job_id"] not in self.model.jobs]
        subjects = [("job", key) for key in self.model.jobs] + raw
        accounts = [("account", key) for key in self.model.accounts]
        return dice.choice(subjects[::-1] + accounts)

    def _command(self, dice: random.Random, about: tuple[str, str] | None = None) -> Command:
        kind, key = about or self._subject(dice)
        if kind == "account":
            return self._about_account(dice, key)
        if kind == "hold":
            return self._about_hold(dice, key)
        return self._about_job(dice, key)

    def _about_account(self, dice: random.Random, account_id: str) -> Command:
        name = self._choose(dice, ["hold", "submit_training", "set_frozen", "claim", "limit"])
        if name == "hold":
            self.raw += 1
            left = self.model.left(account_id)
            job_id = f"job_raw_{dice.choice([self.raw, max(self.raw - 1, 1)])}"
            amount_nano = dice.choice([1, left // 3, left, left + 1, 0])
            return Command("hold", {"account_id": account_id, "job_id": job_id, "amount_nano": amount_nano})
        if name == "submit_training":
            return self._submission(dice, account_id)
        if name == "claim":
            job_id = dice.choice(list(self.model.jobs) or ["job_none"])
            return Command("claim", {"worker": dice.choice(WORKERS), "job_id": job_id})
        if name == "limit":
            return self._limit(dice, account_id)
        return self._switch(dice, account_id)

    def _switch(self, dice: random.Random, account_id: str) -> Command:
        frozen = dice.choice([False, True])
        return Command("set_frozen", {"account_id": account_id, "frozen": frozen, "reason": "asked"})

    def _limit(self, dice: random.Random, account_id: str) -> Command:
        """Draw a lower limit, or a step of a raise."""
        asked = [key for key, row in self.model.requests.items() if row["account_id"] == account_id]
        names = ["lower_limit", "request_raise"]
        names += ["approve_raise", "approve_raise", "decline_raise"] if asked else []
        name = self._choose(dice, names)
        key = dice.choice([*ADMINS, "key_of_nobody"])
        if name in ("approve_raise", "decline_raise"):
            return Command(name, {"request_id": dice.choice(asked[::-1]), "decided_with": key})
        epsilon = dice.choice(LIMITS[1:] + LIMITS[:1])
        facts = {"account_id": account_id, "epsilon": epsilon, "reason": "asked"}
        return Command(name, facts | ({"requested_with": key} if name == "request_raise" else {}))

    def _about_hold(self, dice: random.Random, hold_id: str) -> Command:
        """Draw a command about a hold without a job, with any attempt."""
        names = ["arm", "charge", "capture", "fence", "settle", "return_hold"]
        name = self._choose(dice, names)
        attempt = max(self.model.holds[hold_id]["attempt"] + dice.choice([0, 0, 1, -1]), 0)
        if name == "charge":
            return self._charge(dice, hold_id, attempt)
        args: dict[str, Any] = {"hold_id": hold_id}
        if name != "return_hold":
            args["attempt"] = attempt
        if name == "capture":
            args["artifact_sha256"] = dice.choice([None, *SHAS])
        if name in ("capture", "settle", "return_hold"):
            args["reason"] = "asked"
        return Command(name, args)

    def _about_job(self, dice: random.Random, job_id: str) -> Command:
        """Draw a message of a worker, whose attempt may be stale, or a request of the job's owner."""
        job = self.model.jobs[job_id]
        names = ["claim", "request_cancel", "heartbeat", "give_back", "drop_lease", "finish_failed", "finish_cancelled"]
        names += ["report_progress", "secret_of", "publish", "finish_sample"]
        names += ["arm", "charge", "publish"] if job["kind"] == "train" else ["finish_sample"]
        name = self._choose(dice, names)
        attempt = max(job["attempt"] - dice.choice([0, 0, 0, 1, 2]), 1)
        fence = {"job_id": job_id, "attempt": attempt}
        if name == "claim":
            return Command(name, {"worker": dice.choice(WORKERS), "job_id": job_id})
        if name == "request_cancel":
            return Command(name, {"job_id": job_id})
        if name == "arm":
            return Command(name, {"hold_id": job["hold_id"], "attempt": attempt})
        if name == "charge":
            return self._charge(dice, job["hold_id"], attempt)
        if name == "publish":
            return self._publication(dice, job_id, attempt)
        if name == "finish_sample":
            return self._end_of_sample(dice, job_id, attempt)
        if name == "finish_failed":
            return Command(name, {**fence, "failure_code": FailureCode.TRAINING_FAILED})
        if name == "report_progress":
            told = dice.choice([{"stage": "votes", "step": 1}, {"loss": 0.5}])
            return Command(name, {**fence, "progress": told})
        return Command(name, fence)

    def _submission(self, dice: random.Random, account_id: str | None = None) -> Command:
        who = {"principal": dice.choice(["key_one", "key_two"]), "idempotency_key": dice.choice([None, None, "a", "b"])}
        if account_id is None and self.model.releases and dice.random() < 0.5:
            release_id = dice.choice([*self.model.releases, "rel_" + "a" * 20])
            seed = dice.randint(0, 1)
            facts = {"release_id": release_id, "count": 3, "classes": None, "seed": seed, "format": "npz"}
            return Command("submit_sample", who | facts)
        datasets = [key for key, owner in self.model.datasets.items() if account_id in (None, owner)]
        facts = {"dataset_id": dice.choice(datasets), "recipe": "datalens", "epsilon": dice.choice(EPSILONS)}
        return Command("submit_training", who | facts | {"options": {}, "evaluation_dataset_id": None})

    def _charge(self, dice: random.Random, hold_id: str, attempt: int) -> Command:
        hold = self.model.holds[hold_id]
        left = hold["amount_nano"] - hold["charged_nano"]
        amount_nano = dice.choice([hold["amount_nano"] // 3, 1, left, left + 1, 0])
        facts = {"hold_id": hold_id, "attempt": attempt, "amount_nano": amount_nano}
        if dice.random() < 0.5:
            return Command("charge", facts | {"stage": "votes", "event": {"count": 1}})
        event = {"count": dice.choice((1, PAID_AS_WHOLE // 2, PAID_AS_WHOLE + 1))}
        return Command("charge", facts | {"stage": "steps", "event": event, "paid_as_whole": PAID_AS_WHOLE})

    def _publication(self, dice: random.Random, job_id: str, attempt: int) -> Command:
        release_id = release_id_of(job_id)
        facts = {"release_id": release_id, "name": "first", "card": {"epsilon": 1.0}, "summary": {}}
        facts |= {"artifact_sha256": dice.choice(SHAS), "artifact_dir": f"releases/{release_id}"}
        return Command("publish", {"job_id": job_id, "attempt": attempt, **facts})

    def _end_of_sample(self, dice: random.Random, job_id: str, attempt: int) -> Command:
        facts = {"path": "samples/one.npz", "sha256": dice.choice(SHAS), "bytes": 1}
        return Command("finish_sample", {"job_id": job_id, "attempt": attempt, **facts})
