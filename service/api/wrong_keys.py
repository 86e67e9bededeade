"""Keys that open nothing: how many an address may send before it is told to wait.

A valid key passes however many wrong ones came from its address, so nobody locks out anybody who shares one. That tells
a guesser nothing new: a token has 256 random bits, and at a billion guesses a second the first of a million keys would
be found after 10^54 years. What the limit holds back is the log, and programs that repeat what cannot succeed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from service.api.counts import Counts, ProcessCounts


@dataclass(frozen=True)
class WrongKeys:
    """Counts wrong keys within windows of time: for each address, and for each key that an address claims to hold.

    So whoever mistypes one key on an address from which somebody tries many others is told what is wrong with it.
    """

    counts: Counts = field(default_factory=ProcessCounts)
    of_one_key_max: int = 10
    of_address_max: int = 100
    window_seconds: float = 300.0

    def count(self, address: str, claimed_id: str) -> float:
        """Count a wrong key, and return how many seconds its sender should wait; 0 where it need not.

        Args:
            address: of the client.
            claimed_id: the id in the token; empty where the text has not the form of one.
        """
        return max(
            self._wait(f"wrong:{address}", self.of_address_max),
            self._wait(f"wrong:{address}:{claimed_id}", self.of_one_key_max),
        )

    def _wait(self, name: str, most: int) -> float:
        count, seconds_left = self.counts.count(name, self.window_seconds)
        return 0.0 if count <= most else seconds_left
