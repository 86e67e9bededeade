"""Plan, accept, lease and end jobs. Start with `lifecycle`; `kinds` has one file for each kind of job.

Functions take a session and never commit; those that write need a writing transaction. `now` is timezone-aware.
`principal` is the id of the caller; idempotency keys are scoped to it. Functions raise NotFound if the job does not
exist, and StaleAttempt if another attempt has taken over or the job has ended. Nothing here runs a job or reads images.
"""

from service.db.job_tables import FailureCode
from service.jobs.endings import finish_cancelled, finish_failed, finish_unsaved, may_publish, tries_left
from service.jobs.kind import made_by
from service.jobs.kinds import KINDS
from service.jobs.kinds.train import publish
from service.jobs.lifecycle import (
    StopRequest,
    claim,
    claimable,
    end_early,
    get_job,
    give_back,
    heartbeat,
    report_progress,
    report_silence,
    reported_silence,
    request_cancel,
    secret_of,
    stop_request,
)
from service.jobs.planning import charged_before_useful, facts_of
from service.jobs.releases import (
    SHARE_EFFECTS,
    end_share,
    get_own_release,
    request_share,
    shares,
    trained_on,
)
from service.jobs.submission import submit
from service.jobs.sweeps import Trial, cancel_sweep, jobs_of_sweep, plan_trials, requested_trials, submit_sweep
