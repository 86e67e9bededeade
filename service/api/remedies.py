"""The meaning and the remedy of each error code, for the error reference."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from service.api.problems import STATUSES
from service.errors import ObscuraError

# What a caller should do about an error, by code.
REMEDIES = {
    "account_closed": "Open another account for the new people, or ask this account's owner to open it to new data.",
    "account_frozen": "Ask an admin for the reason, and to unfreeze the account.",
    "address_refused": "Use an https address with a public host.",
    "arming_stopped": "Ask the operator to run `obscura ledger verify`. Jobs wait and lose nothing.",
    "audit_log_unavailable": "Nothing was done. Retry once the operator has corrected the audit log.",
    "busy": "Wait for `Retry-After`, or use fewer concurrent requests.",
    "clock_refused": "Ask the operator to set the clock; then retry.",
    "conflict": "Read the message and the object's state, then retry or change the request.",
    "database_unsuitable": "Ask the operator to correct the setting that the message names.",
    "forbidden": "Use a key with the scope that the message names, or ask an admin for one.",
    "hold_exhausted": "None, because only workers get this error. The training ends with the results paid for so far.",
    "idempotency_mismatch": "Use a new key for a new request.",
    "installation_locked": "Ask the operator to record the missing spending (`obscura ledger accept ACCOUNT`).",
    "insufficient_budget": "Lower epsilon, reuse a release (free), or request a higher limit.",
    "internal": "Send the operator the `X-Request-Id` of the response.",
    "invalid_input": "Correct the value that the message names.",
    "invalid_parameter": "Correct the option that the message names; `GET /v1/recipes` has its bounds.",
    "invalid_request": "Correct the fields listed in `errors`.",
    "job_failed": "Read the job's `failure`, correct the cause, and request it again.",
    "large_delta": "Lower delta, or confirm it with `accept_large_delta`.",
    "ledger_corruption": "Ask the operator to run `obscura ledger verify`. Nothing was spent.",
    "not_found": "Check the id, and that the key belongs to the object's project.",
    "pending": "Wait for the job to end.",
    "provider_unavailable": "Retry later. Keys of the installation's admins still work.",
    "quota_exceeded": "For jobs, wait until one ends; for known uploads, until midnight UTC. Or ask an admin for more.",
    "range_not_satisfiable": "Request the file again from its beginning.",
    "sample_removed": "Request the same sample again: it costs nothing and has the same bytes.",
    "upload_lost": "Upload again. With several servers, send all parts of an upload to the same server.",
    "stale_attempt": "None, because only workers get this error. Another attempt of the job has taken over.",
    "storage_unavailable": "Wait for `Retry-After`, then retry.",
    "too_large": "Send less, or ask the operator to raise the limit.",
    "too_many_requests": "Wait for `Retry-After`. Follow jobs by their events instead of polling them.",
    "too_many_streams": "Wait for `Retry-After`.",
    "too_many_streams_for_key": "Close an event stream of this key.",
    "too_many_streams_for_project": "Close an event stream of this project.",
    "too_many_uploads_for_key": "Wait until another upload of this key ends.",
    "too_many_uploads_for_project": "Wait until another upload of this project ends.",
    "too_many_wrong_keys": "Send a valid key, or wait for `Retry-After`.",
    "unauthorized": "Send a valid key: `Authorization: Bearer TOKEN`.",
    "unsupported_media_type": "Send JSON with `Content-Type: application/json`, or the file itself.",
    "upload_failed": "Upload again. The dataset is still declared.",
    "upload_refused": "Correct the content: `fault` names the broken rule.",
    "upload_stalled": "Upload again at 8 KiB a second or more.",
    "uploads_stopped": "Ask the operator to free disk space, or to restore the fingerprint key if it is missing.",
}


def meanings() -> dict[str, str]:
    """Return the meaning of each error code, from its class; empty if the code has no class."""
    docs = {each.code: inspect.getdoc(each) or "" for each in _subclasses(ObscuraError) if "code" in vars(each)}
    return {code: docs.get(code, "").split("\n\n")[0].replace("\n", " ") for code in sorted(STATUSES)}


def _subclasses(kind: type[ObscuraError]) -> Iterator[type[ObscuraError]]:
    for child in kind.__subclasses__():
        yield child
        yield from _subclasses(child)
