"""What the runner says when something breaks: where and of which kind, never with which values.

A traceback's messages may quote tensors, file names of an upload or single records, so only the project's own errors,
whose messages are public by rule, keep theirs. The text goes to the operator's log.
"""

from __future__ import annotations

import errno
import faulthandler
import sys
import threading
import traceback
import warnings
from types import TracebackType
from typing import Any, TextIO

import torch
from sqlalchemy.exc import SQLAlchemyError

from privacy.errors import BudgetExceeded
from service.errors import (
    AccountFrozen,
    HoldExhausted,
    LedgerCorruption,
    NotFound,
    ObscuraError,
)
from service.jobs import FailureCode

_FRAMES_MAX = 50


def trace_of(error: BaseException) -> str:
    """Return the traceback of an error and of what led to it: files, lines, functions and types, no values."""
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return "\nled to\n".join(_one(link) for link in reversed(chain))


def failure_code(error: BaseException, otherwise: FailureCode) -> FailureCode:
    """Map an error to the closed set of reasons that may be told.

    Args:
        error: what ended the attempt.
        otherwise: the reason of the phase in which it happened, for errors that are nothing special.
    """
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or _is_allocator_failure(error):
        return FailureCode.OUT_OF_MEMORY
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return FailureCode.OUT_OF_DISK
    if isinstance(error, BudgetExceeded | HoldExhausted):
        return FailureCode.HOLD_EXHAUSTED
    if isinstance(error, AccountFrozen | LedgerCorruption | SQLAlchemyError):
        return FailureCode.LEDGER_UNAVAILABLE
    if isinstance(error, NotFound):
        return {
            FailureCode.TRAINING_FAILED: FailureCode.DATASET_UNAVAILABLE,
            FailureCode.SAMPLING_FAILED: FailureCode.RELEASE_UNAVAILABLE,
            FailureCode.EVALUATION_FAILED: FailureCode.DATASET_UNAVAILABLE,
        }.get(otherwise, otherwise)
    return otherwise


def keep_values_out(stream: TextIO | None = None) -> None:
    """Make every way in which the interpreter reports an error by itself go through `trace_of`.

    Args:
        stream: where reports go; None is stderr.
    """
    target = stream or sys.stderr

    def report(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
        target.write(trace_of(error.with_traceback(trace)) if error is not None else kind.__name__)
        target.write("\n")
        target.flush()

    def report_thread(failure: threading.ExceptHookArgs) -> None:
        report(failure.exc_type, failure.exc_value, failure.exc_traceback)

    def report_unraisable(failure: Any) -> None:
        report(failure.exc_type, failure.exc_value, failure.exc_traceback)

    def report_warning(  # the message may quote values
        message: Warning | str,  # noqa: ARG001
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,  # noqa: ARG001
        line: str | None = None,  # noqa: ARG001
    ) -> None:
        target.write(f"{category.__name__} at {filename}:{lineno}\n")

    sys.excepthook = report
    threading.excepthook = report_thread
    sys.unraisablehook = report_unraisable
    warnings.showwarning = report_warning
    faulthandler.enable(target)  # frames only


def _one(error: BaseException) -> str:
    said = f": {error.message}" if isinstance(error, ObscuraError) else ""
    frames = traceback.extract_tb(error.__traceback__, limit=-_FRAMES_MAX)
    return "".join(traceback.format_list(frames)) + type(error).__name__ + said


def _is_allocator_failure(error: BaseException) -> bool:
    """Torch's CPU allocator raises a plain RuntimeError."""
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
