"""The limit of the bytes that a router holds for all its clients together."""

from __future__ import annotations


class ByteBudget:
    """A count of the bytes that are held, and the rule by which more are taken.

    A client may hold at most as many bytes as are free. So clients that hold as much as they can get equal
    shares, however many there are, and leave one more share for others: a few large requests never keep out
    the small ones. (Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches",
    1998.)

    Attributes:
        max_bytes: limit of all bytes.
        num_held: bytes that are held now.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_held = 0

    def fits(self, num_bytes: int, own_bytes: int) -> bool:
        """Return whether a client that holds `own_bytes` may hold `num_bytes` more."""
        return own_bytes + num_bytes <= self.max_bytes - self.num_held - num_bytes

    def take(self, num_bytes: int, own_bytes: int) -> bool:
        """Count bytes as held, if a client that holds `own_bytes` may hold so many more; return whether."""
        fits = own_bytes + num_bytes <= self.max_bytes - self.num_held - num_bytes  # as `fits` has it
        if fits:
            self.num_held += num_bytes
        return fits

    def count(self, num_bytes: int) -> None:
        """Count bytes that are held in any case; with a negative number, bytes that no longer are."""
        self.num_held += num_bytes
