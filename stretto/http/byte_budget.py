"""The limit of the bytes that a server holds for all its clients together."""

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
        if not self.fits(num_bytes, own_bytes):
            return False
        self.count(num_bytes)
        return True

    def count(self, num_bytes: int) -> None:
        """Count bytes that are held in any case; with a negative number, bytes that no longer are."""
        self.num_held += num_bytes


class BudgetPart(ByteBudget):
    """The part of a budget that a group of clients uses, such as the requests of one tenant.

    The rule holds twice. A group may hold at most three times the bytes that are free: one alone gets three
    quarters of the budget, two get three sevenths each, and a further group always finds room. Within a
    group, a client may hold at most as many bytes as are left of what the group may hold.

    Attributes:
        num_held: bytes that the group holds now.
    """

    def __init__(self, whole: ByteBudget) -> None:
        super().__init__(whole.max_bytes)
        self._whole = whole

    def fits(self, num_bytes: int, own_bytes: int) -> bool:
        """Return whether a client of the group that holds `own_bytes` may hold `num_bytes` more."""
        num_free = self._whole.max_bytes - self._whole.num_held
        num_left = (3 * num_free - self.num_held) / 4  # of what the group may hold
        return own_bytes + num_bytes <= num_left - num_bytes

    def count(self, num_bytes: int) -> None:
        """Count bytes that the group holds in any case; with a negative number, bytes that it no longer
        holds.
        """
        super().count(num_bytes)
        self._whole.count(num_bytes)
