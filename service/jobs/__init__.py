"""Jobs: planning, acceptance, leases and endings. Plain functions that take a session and never commit."""

from service.db.job_tables import FailureCode, JobKind, JobState
from service.jobs.endings import finish_cancelled, finish_failed, finish_sample, publish
from service.jobs.lifecycle import ATTEMPTS_MAX, Claim, claim, give_back, heartbeat, report_progress, request_cancel
from service.jobs.lookup import get_job, get_release, sample_of, secret_of
from service.jobs.planning import plan_job
from service.jobs.submission import submit_sample, submit_training
from service.jobs.sweeps import Trial, cancel_sweep, get_sweep, jobs_of_sweep, submit_sweep

__all__ = [
    "ATTEMPTS_MAX",
    "Claim",
    "FailureCode",
    "JobKind",
    "JobState",
    "Trial",
    "cancel_sweep",
    "claim",
    "finish_cancelled",
    "finish_failed",
    "finish_sample",
    "get_job",
    "get_release",
    "get_sweep",
    "give_back",
    "heartbeat",
    "jobs_of_sweep",
    "plan_job",
    "publish",
    "report_progress",
    "request_cancel",
    "sample_of",
    "secret_of",
    "submit_sample",
    "submit_sweep",
    "submit_training",
]
