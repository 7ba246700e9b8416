"""The steps inside a jump of an emulated LLM instance: at the end of each, streams get their tokens.

The instance computes many steps at once, as the simulator does, and knows when each will end. A jump that
something from outside cuts keeps its steps that have begun, so what has been told stays true:

    jump      step | step | step | step | step
    ticks          ^      ^      ^      ^      ^     each plans the next
    landing                                    ^     behind the last tick
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from stretto.emulate.clock import EmulatedClock
from stretto.emulate.running_request import RunningRequest
from stretto.llm.sequence import TokenSequence
from stretto.sim.step_jump import StepJump

Tick: TypeAlias = Callable[[Sequence[tuple[RunningRequest, int]], float | None], None]
"""A function that is called at the end of a step with the requests that have a new token, each with the
token's number, and with the end of the step before, or None for the first of a jump.
"""
_RANK = -1
"""Rank of ticks among calls of the same time: they come before jumps end."""


class StepTicker:
    """Calls `tick` at the end of each step in which streamed requests get tokens."""

    def __init__(self, clock: EmulatedClock, tick: Tick) -> None:
        self._clock = clock
        self._tick = tick
        self._streams: dict[int, RunningRequest] = {}
        self._jump: StepJump | None = None
        self._followed: list[tuple[RunningRequest, int]] = []
        """Requests of the jump, with the number of tokens that they had before."""
        self._num_ended = 0
        self._is_planned = False

    def add(self, sequence: TokenSequence, request: RunningRequest) -> None:
        """Follow a request from the next jump on."""
        request.stream = sequence.id
        self._streams[sequence.id] = request

    def drop(self, request: RunningRequest) -> None:
        """Tell a request nothing more."""
        if request.stream is not None and self._streams.get(request.stream) is request:
            del self._streams[request.stream]
        request.stream = None

    def clear(self) -> None:
        """Forget all requests and the present jump."""
        self._streams = {}
        self._jump = None

    def follow(self, jump: StepJump) -> None:
        """Tick at the end of each step of a jump, as far as these are known."""
        if jump is not self._jump:
            self._jump = jump
            self._num_ended = 0
            self._is_planned = False
            streams = self._streams
            self._followed = [
                (streams[sequence.id], len(sequence.tokens) - sequence.num_prompt_tokens)
                for sequence, _, _, samples in (jump.batch.slices if streams else ())
                if samples and sequence.id in streams
            ]
        if self._followed and not self._is_planned:
            self._plan(jump)

    def _plan(self, jump: StepJump) -> None:
        self._is_planned = self._num_ended < len(jump.ends_s)
        if self._is_planned:
            self._clock.at(jump.ends_s[self._num_ended], lambda: self._end_step(jump), _RANK)

    def _end_step(self, jump: StepJump) -> None:
        if jump is not self._jump:
            return  # the instance was started anew
        number = self._num_ended
        self._num_ended += 1
        self._plan(jump)
        streams = [
            (request, before + number) for request, before in self._followed if request.stream is not None
        ]
        if streams:
            self._tick(streams, jump.ends_s[number - 1] if number else None)
