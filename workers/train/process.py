"""Set up a process that trains: error reports, memory and cores.

Error reports contain locations and types, never values. A traceback's messages may quote tensors, file names of an
upload or single records. So only the project's own errors, whose messages are public by rule, keep their messages. The
text is written to the operator's log.

Each step reuses the memory that the last step freed. By default, glibc's allocator returns large blocks to the
operating system at once. Getting them back, page by page and zeroed, took up to half of a step on a CPU
(docs/research/dpsgd_throughput.md).
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from sqlalchemy.exc import SQLAlchemyError
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from obscura.private_files import keep_new_files_private
from privacy.errors import BudgetExceeded
from service.errors import AccountFrozen, HoldExhausted, LedgerCorruption, NotFound, ObscuraError
from service.jobs import FailureCode
from service.jobs.kind import Kind
from service.logs import configure_logging
from service.settings import Settings


def trace_of(error: BaseException) -> str:
    """Return the traceback of an error and its causes: files, lines, functions and types, no values.

    Log it line by line, because the log truncates long texts at their end, where the origin is.
    """
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    texts = []
    for link in reversed(chain):
        frames = traceback.extract_tb(link.__traceback__, limit=-50)
        message = f": {link.message}" if isinstance(link, ObscuraError) else ""
        texts.append("".join(traceback.format_list(frames)) + type(link).__name__ + message)
    return "\nled to\n".join(texts)


def failure_code(error: BaseException, kind: Kind) -> FailureCode:
    """Return the failure code for an attempt's error: one of a fixed set of codes that users see."""
    allocation = isinstance(error, RuntimeError) and "can't allocate memory" in str(error)  # torch's error on the CPU
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or allocation:
        return FailureCode.OUT_OF_MEMORY
    if isinstance(error, BudgetExceeded | HoldExhausted):
        return FailureCode.HOLD_EXHAUSTED
    if isinstance(error, AccountFrozen | LedgerCorruption | SQLAlchemyError):
        return FailureCode.LEDGER_UNAVAILABLE
    if isinstance(error, NotFound):
        return kind.unavailable
    return kind.failed


def keep_values_out() -> None:
    """Route every error report of the interpreter through `trace_of`."""
    target = sys.stderr

    def report(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
        target.write(trace_of(error.with_traceback(trace)) if error is not None else kind.__name__)
        target.write("\n")
        target.flush()

    def report_failure(failure: Any) -> None:  # in a thread, or one that cannot be raised
        report(failure.exc_type, failure.exc_value, failure.exc_traceback)

    def report_warning(*warning: Any, **_: Any) -> None:
        _message, category, filename, lineno = warning[:4]  # the message may quote values
        target.write(f"{category.__name__} at {filename}:{lineno}\n")

    sys.excepthook = report
    threading.excepthook = report_failure
    sys.unraisablehook = report_failure
    warnings.showwarning = report_warning
    faulthandler.enable(target)  # frames only


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # from malloc.h
_MMAP_THRESHOLD_MAX = 32 * 2**20  # bytes; glibc's maximum
_NEVER_TRIM = 2**31 - 1  # bytes


def keep_freed_memory() -> None:
    """Keep freed blocks of up to 32 MiB for reuse. Has no effect with allocators other than glibc's."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, _MMAP_THRESHOLD_MAX)
        mallopt(_TRIM_THRESHOLD, _NEVER_TRIM)


def share_cores(processes: int) -> None:
    """Give this process its share of the cores, unless the environment sets the number of threads."""
    if "OMP_NUM_THREADS" not in os.environ:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        torch.set_num_threads(max(1, cores // processes))


def sign_while_computing(give: Callable[[], None]) -> None:
    """Give a sign of life before every layer of any network in this process, and after every optimiser step.

    Step reports give signs, too. So signs are seconds apart, or at most minutes apart during a single operation on a
    whole matrix.
    """
    register_module_forward_pre_hook(lambda *_: give())
    register_optimizer_step_post_hook(lambda *_: give())


def begin_process(processes: int) -> Settings:
    """Set up one of `processes` training processes on this machine; return its settings, from the environment."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the service handles Ctrl-C; it then stops its runners
    settings = Settings()
    configure_logging(settings.log_level)
    keep_new_files_private()
    keep_values_out()
    share_cores(processes)
    keep_freed_memory()
    return settings
