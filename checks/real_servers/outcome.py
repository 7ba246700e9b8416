"""What a check of real servers has found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Outcome:
    """One thing that was looked at: its name, whether it is as documented, and what was seen."""

    name: str
    is_right: bool
    seen: str = ""

    def __str__(self) -> str:
        return f"{'ok   ' if self.is_right else 'WRONG'} {self.name}: {self.seen}"
