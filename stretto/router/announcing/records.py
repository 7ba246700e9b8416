"""What is told of a router's own requests, in the form in which peers read it."""

from __future__ import annotations

from stretto.cluster.placement_request import PlacementRequest
from stretto.cluster.prefix_hashes import pack_hashes
from stretto.model.tasks import Usage
from stretto.router.announcing.wire import (
    EndedRecord,
    LeftRecord,
    RoomThere,
    SentRecord,
    WaitingRecord,
    short_name,
)
from stretto.router.loads import RunningAtWorker
from stretto.router.messages import RoutedRequest, Ticket, WorkerUsage


def sent_record(
    ticket: Ticket,
    request: RoutedRequest,
    running: RunningAtWorker,
    worker: str,
    room: RoomThere,
) -> SentRecord:
    """Return the record of a request that was sent to a worker with an address."""
    placed = running.placed
    return SentRecord(
        *_described(ticket, request, placed, room),
        running.ticket,
        worker,
        running.held_tokens,
        placed.purpose.preference,
    )


def waiting_record(
    ticket: Ticket, request: RoutedRequest, placed: PlacementRequest, room: RoomThere
) -> WaitingRecord:
    """Return the record of a request that waits."""
    return WaitingRecord(*_described(ticket, request, placed, room))


def _described(
    ticket: Ticket, request: RoutedRequest, placed: PlacementRequest, room: RoomThere
) -> tuple[Ticket, str, str, str, bool, bool, int, int, bytes, RoomThere]:
    key, program = request.key, request.program
    return (
        ticket,
        short_name(request.model),
        short_name(request.owner),
        short_name(program.shared or program.name),
        program.has_returned,
        program.is_final,
        placed.num_tokens,
        placed.expected_output,
        b"" if key is None else pack_hashes(key.blocks),
        room,
    )


def ended_record(
    running: RunningAtWorker, usage: WorkerUsage, *, is_timed: bool, was_refused: bool
) -> EndedRecord:
    """Return the record of an attempt that has ended, with believable counts."""
    return EndedRecord(
        running.ticket,
        usage.num_prompt,
        usage.num_output,
        usage.num_cached,
        usage.is_older_api,
        is_timed,
        was_refused,
    )


def left_record(ticket: Ticket, usage: Usage | None, *, was_refused: bool) -> LeftRecord:
    """Return the record of a request that has left, with the counts of its answer if there was one."""
    if usage is None:
        return LeftRecord(ticket, None, 0, 0, was_refused)
    return LeftRecord(
        ticket, usage.num_prompt_tokens, usage.num_cached_tokens, usage.num_output_tokens, was_refused
    )
