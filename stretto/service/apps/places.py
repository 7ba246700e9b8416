"""Errors in a request, with the place of what is wrong."""

from __future__ import annotations

from stretto.errors import UserError


class Misplaced(UserError):
    """Error: something in a request is wrong.

    Attributes:
        place: where it stands in the request, such as "settings.indexing.tokens".
    """

    def __init__(self, place: str, message: str, *, step: str | None = None) -> None:
        super().__init__(message, step=step)
        self.place = place

    def __reduce__(self) -> tuple[object, ...]:
        return Misplaced, (self.place, self.message)

    def at(self, step: str) -> Misplaced:
        """Return this error: what is wrong in a request belongs to no step."""
        return self
