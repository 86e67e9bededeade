"""Secret randomness: keys derived from a job's secret, an AES-256-CTR key stream, and draws from it."""

from __future__ import annotations

from typing import NoReturn

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from privacy.errors import InvalidParameter
from privacy.mechanisms import discrete_gaussian

KEY_BYTES = 32
SECRET_BYTES_MIN = 16


def derive_key(secret: bytes, *labels: str | int) -> bytes:
    """Derive a 32-byte key for one purpose from a job's secret with HKDF-SHA256 (RFC 5869).

    Different label sequences give independent keys, because each label is encoded with its type and length. With
    attempt and step among the labels, no two attempts share noise.

    Args:
        secret: the job's secret, at least 16 bytes from the operating system's generator. Private.
        labels: texts and integers, for example "noise", attempt, "votes", step. Public.

    Raises:
        InvalidParameter: the secret is too short, or a label is missing or of another type.
    """
    if len(secret) < SECRET_BYTES_MIN:
        raise InvalidParameter("secret", "(hidden)", f"a secret must have at least {SECRET_BYTES_MIN} bytes")
    if not labels:
        raise InvalidParameter("labels", labels, "give at least one label for the purpose of the key")
    encoded = []
    for label in labels:
        if isinstance(label, bool) or not isinstance(label, str | int):
            raise InvalidParameter("labels", label, "labels must be texts or integers")
        value = str(label).encode()
        encoded.append(f"{'s' if isinstance(label, str) else 'i'}{len(value)}:".encode() + value)
    info = b"obscura key v1|" + b"".join(encoded)
    return HKDF(algorithm=hashes.SHA256(), length=KEY_BYTES, salt=None, info=info).derive(secret)


class SecureNoise:
    """A cryptographic generator; the same key gives the same draws in the same order.

    Use one object per derived key, in one thread and not across a fork. A copy would repeat the noise, so copying and
    pickling raise TypeError.
    """

    def __init__(self, key: bytes) -> None:
        """Start the key stream of a 32-byte key at block zero, or raise InvalidParameter."""
        if len(key) != KEY_BYTES:
            raise InvalidParameter("key", "(hidden)", f"a key must have {KEY_BYTES} bytes")
        self._stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()

    @classmethod
    def derive(cls, secret: bytes, *labels: str | int) -> SecureNoise:
        """Return `SecureNoise(derive_key(secret, *labels))`."""
        return cls(derive_key(secret, *labels))

    def __reduce__(self) -> NoReturn:  # copy and deepcopy also call this
        raise TypeError("a copy would repeat secret noise")

    def integers64(self, n: int) -> npt.NDArray[np.uint64]:
        """Return (n,) independent uniform 64-bit words: the next 8 n bytes of the key stream, little-endian."""
        return np.frombuffer(self._stream.update(bytes(8 * n)), dtype="<u8").astype(np.uint64, copy=False)

    def uniform(self, shape: int | tuple[int, ...]) -> npt.NDArray[np.float64]:
        """Return independent multiples of 2^-53 in [0, 1), for sampling decisions; never for additive noise."""
        bits = (self.integers64(int(np.prod(shape))) >> np.uint64(11)).astype(np.float64)  # 53 bits: exact
        return (bits * 2.0**-53).reshape(shape)

    def discrete_gaussian(self, shape: int | tuple[int, ...], stddev: float) -> npt.NDArray[np.int64]:
        """Draw independent integers from the exact discrete Gaussian N_Z(0, stddev^2).

        Defined by Canonne, Kamath & Steinke 2020 (arXiv:2004.00010). `discrete_gaussian.draw` samples without
        approximation: given uniform key stream bytes, each integer has exactly its probability.

        Args:
            stddev: parameter of at most 2^45, taken as an exact rational. The true standard deviation never exceeds it.
                If the parameter is at least 1, both agree to one part in a million.

        Returns:
            int64 of that shape.

        Privacy:
            Added to an integer query of L2 sensitivity D it costs `GaussianEvent.of_discrete_noise(D, stddev)`.

        Raises:
            InvalidParameter: stddev is not a positive finite number of at most 2^45.
        """
        table = discrete_gaussian.step_table(float(stddev))
        return discrete_gaussian.draw(int(np.prod(shape)), table, self.integers64).reshape(shape)
