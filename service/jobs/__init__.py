"""Jobs: planning, acceptance, leases and endings. Plain functions that take a session and never commit."""

from obscura.wire.words import EarlyEnd, FailureCode, JobKind, JobState
from service.jobs.counting import pay_for_count
from service.jobs.endings import finish_cancelled, finish_failed, finish_sample, finish_unsaved, may_publish
from service.jobs.evaluations import (
    finish_evaluation,
    newest_evaluations,
    newest_on_own_dataset,
    submit_evaluation,
    with_figures,
)
from service.jobs.lifecycle import (
    Claim,
    Wish,
    claim,
    claimable,
    end_early,
    give_back,
    heartbeat,
    report_progress,
    request_cancel,
    wish_for,
)
from service.jobs.lookup import evaluation_of, get_job, get_release, get_sweep, preview_of, sample_of, secret_of
from service.jobs.planning import charged_before_useful, plan_job
from service.jobs.previews import finish_preview, submit_preview
from service.jobs.publication import publish
from service.jobs.silence import minutes_told, tell_silence
from service.jobs.submission import submit_sample, submit_training
from service.jobs.sweeps import Trial, cancel_sweep, jobs_of_sweep, submit_sweep

__all__ = [
    "Claim",
    "EarlyEnd",
    "FailureCode",
    "JobKind",
    "JobState",
    "Trial",
    "Wish",
    "cancel_sweep",
    "charged_before_useful",
    "claim",
    "claimable",
    "end_early",
    "evaluation_of",
    "finish_cancelled",
    "finish_evaluation",
    "finish_failed",
    "finish_preview",
    "finish_sample",
    "finish_unsaved",
    "get_job",
    "get_release",
    "get_sweep",
    "give_back",
    "heartbeat",
    "jobs_of_sweep",
    "may_publish",
    "minutes_told",
    "newest_evaluations",
    "newest_on_own_dataset",
    "pay_for_count",
    "plan_job",
    "preview_of",
    "publish",
    "report_progress",
    "request_cancel",
    "sample_of",
    "secret_of",
    "submit_evaluation",
    "submit_preview",
    "submit_sample",
    "submit_sweep",
    "submit_training",
    "tell_silence",
    "wish_for",
    "with_figures",
]
