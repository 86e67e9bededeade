"""What every step of an attempt needs to know about its process."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import torch

from service.db.session import SessionFactory
from service.settings import Settings
from workers.claims import Attempt


@dataclass(frozen=True)
class Context:
    """One attempt in its process.

    Args:
        settings: of this process.
        factory: of sessions.
        attempt: that runs here.
        stop: set when it should stop at its next step.
        device: to train on.
    """

    settings: Settings
    factory: SessionFactory
    attempt: Attempt
    stop: threading.Event
    device: torch.device
