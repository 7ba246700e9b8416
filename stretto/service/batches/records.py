"""What is kept of files and batches, and how clients of OpenAI see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

BatchStatus: TypeAlias = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]
ENDED: frozenset[BatchStatus] = frozenset(("failed", "completed", "expired", "cancelled"))
"""Statuses of batches that have ended."""


class StoredFile(msgspec.Struct, frozen=True):
    """A file of a tenant.

    Attributes:
        purpose: what it is for: "batch", or "batch_output" for what a batch has written.
        created_at, expires_at: seconds of Unix time; None for a file that does not expire.
    """

    id: str
    tenant: str
    filename: str
    purpose: str
    num_bytes: int
    created_at: int
    expires_at: int | None = None

    def to_json(self) -> dict[str, object]:
        """Return the object that OpenAI's API has for it."""
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.num_bytes,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": None,
        }


class BatchProblem(msgspec.Struct, frozen=True):
    """Something wrong with an input file, or with one of its lines, whose number counts from 1."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class SpentTokens(msgspec.Struct, frozen=True):
    """The tokens of the answers of a batch."""

    num_prompt: int = 0
    num_cached: int = 0
    num_output: int = 0

    def plus(self, other: SpentTokens) -> SpentTokens:
        """Return the sum of both."""
        return SpentTokens(
            self.num_prompt + other.num_prompt,
            self.num_cached + other.num_cached,
            self.num_output + other.num_output,
        )

    def to_json(self) -> dict[str, object]:
        """Return the object that OpenAI's API has for it."""
        return {
            "input_tokens": self.num_prompt,
            "input_tokens_details": {"cached_tokens": self.num_cached},
            "output_tokens": self.num_output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.num_prompt + self.num_output,
        }


class BatchRecord(msgspec.Struct, frozen=True):
    """A batch of a tenant. Times are in seconds of Unix time.

    Attributes:
        window_s: seconds from its creation to its expiry.
        times: when it got a status, by the status.
        total: number of lines with requests, right or wrong.
        num_completed: number of lines that were answered well.
        num_failed: number of lines that stand in the error file.
        output_kept_s: seconds from its creation after which its files expire; None keeps them.
    """

    id: str
    tenant: str
    endpoint: str
    input_file_id: str
    completion_window: str
    window_s: float
    created_at: int
    metadata: Mapping[str, str] | None = None
    status: BatchStatus = "validating"
    times: Mapping[BatchStatus, int] = {}
    problems: tuple[BatchProblem, ...] = ()
    output_file_id: str | None = None
    error_file_id: str | None = None
    total: int = 0
    num_completed: int = 0
    num_failed: int = 0
    spent: SpentTokens = SpentTokens()
    output_kept_s: int | None = None

    @property
    def expires_at(self) -> float:
        """Time at which it ends, whatever is left of it."""
        return self.created_at + self.window_s

    def moved(self, status: BatchStatus, now_s: float) -> BatchRecord:
        """Return the batch with another status, which it gets now."""
        return msgspec.structs.replace(self, status=status, times={**self.times, status: int(now_s)})

    def to_json(self) -> dict[str, object]:
        """Return the object that OpenAI's API has for it."""
        errors = [msgspec.to_builtins(problem) for problem in self.problems]
        counts = {"total": self.total, "completed": self.num_completed, "failed": self.num_failed}
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "errors": {"object": "list", "data": errors} if errors else None,
            "input_file_id": self.input_file_id,
            "completion_window": self.completion_window,
            "status": self.status,
            "output_file_id": self.output_file_id,
            "error_file_id": self.error_file_id,
            "created_at": self.created_at,
            "in_progress_at": self.times.get("in_progress"),
            "expires_at": int(self.expires_at),
            "finalizing_at": self.times.get("finalizing"),
            "completed_at": self.times.get("completed"),
            "failed_at": self.times.get("failed"),
            "expired_at": self.times.get("expired"),
            "cancelling_at": self.times.get("cancelling"),
            "cancelled_at": self.times.get("cancelled"),
            "request_counts": counts,
            "usage": self.spent.to_json(),
            "metadata": self.metadata,
        }
