"""How a webhook's request is signed, and how its receiver checks that: `Obscura-Signature: t=SECONDS,v1=HEX[,v1=HEX]`.

Signed is `SECONDS.BODY` by HMAC-SHA256 under the webhook's secret, as Stripe signs. While a secret is being replaced
there is a signature under each of the two.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Sequence

SIGNATURE_HEADER = "Obscura-Signature"
TOLERANCE_SECONDS = 300


class SignatureMismatch(ValueError):
    """A request is not from the webhook that the secret is of, was changed on its way, or is too old."""


def sign_webhook(body: bytes, secrets: Sequence[str], *, seconds: int) -> str:
    """Return the header's value for a body that is sent now, in seconds since 1970."""
    return ",".join([f"t={seconds}", *(f"v1={_digest(body, secret, seconds)}" for secret in secrets)])


def verify_webhook(
    body: bytes,
    header: str,
    secret: str,
    *,
    tolerance_seconds: float = TOLERANCE_SECONDS,
    now_seconds: float | None = None,
) -> None:
    """Let a request pass that a webhook has sent a moment ago.

    Args:
        body: As it came, byte by byte.
        header: The value of `Obscura-Signature`.
        secret: That was shown when the webhook was made.
        tolerance_seconds: How far its time may be from now, so that nobody sends an old request again.
        now_seconds: Since 1970; None asks the clock.

    Raises:
        SignatureMismatch: No signature fits, or its time is too far from now.
    """
    parts = [part.strip().partition("=") for part in header.split(",")]
    times = [value for name, _, value in parts if name == "t"]
    if len(times) != 1 or not (times[0].isascii() and times[0].isdecimal() and len(times[0]) <= 12):
        raise SignatureMismatch(f"{SIGNATURE_HEADER} is like t=1790000000,v1=HEX.")
    seconds = int(times[0])
    expected = _digest(body, secret, seconds).encode()
    if not any(hmac.compare_digest(value.encode(), expected) for name, _, value in parts if name == "v1"):
        raise SignatureMismatch("No signature fits this body and secret.")
    if abs((time.time() if now_seconds is None else now_seconds) - seconds) > tolerance_seconds:
        raise SignatureMismatch("The request is too old, or from the future: somebody may have sent it again.")


def _digest(body: bytes, secret: str, seconds: int) -> str:
    return hmac.new(secret.encode(), f"{seconds}.".encode() + body, hashlib.sha256).hexdigest()
