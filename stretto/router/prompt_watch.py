"""The driver of the prefix guard at a router: it shows the guard the key of each prompt, and the texts of the
few that the guard wants to look at, after these have been sent on.
"""

from __future__ import annotations

import asyncio
import json
from functools import partial

from stretto.http.body_readers import LARGE_BYTES, BodyReaders
from stretto.operate.prefix.guard import PromptKind
from stretto.operate.prefix.seen_prompt import SeenPrompt, seen_prompt
from stretto.operate.prefix.shown import fault_json
from stretto.operate.request_metrics import OTHER
from stretto.operate.watch import Watch
from stretto.router.messages import RoutedRequest
from stretto.router.outgoing import OutgoingRequest
from stretto.sched.request_trace import RequestTrace


def kind_of(path: str, routed: RoutedRequest, *, is_listed: bool = True) -> PromptKind:
    """Return the kind of program that a request is of."""
    model = routed.model if is_listed else OTHER
    return PromptKind(routed.owner, routed.tenant or "", model, path, routed.shape)


class PromptWatch:
    """Shows the prefix guard of a door what passes."""

    def __init__(self, watch: Watch, readers: BodyReaders) -> None:
        self._watch = watch
        self._readers = readers
        self._loop = asyncio.get_running_loop()
        self._is_reading = False

    def arrived(self, trace: RequestTrace, routed: RoutedRequest, outgoing: OutgoingRequest) -> None:
        """Note a request that was placed, and how it is sent."""
        if (key := routed.key) is None:
            return
        self._watch.deferred.on_request_keyed(trace, key)
        kind = kind_of(trace.target, routed, is_listed=trace.is_listed)
        if self._watch.prompts.arrived(kind, routed.program.name, key.blocks, key.block_tokens):
            self._look(trace, kind, routed.program.name, outgoing.edited_body)

    def _look(self, trace: RequestTrace, kind: PromptKind, program: str, data: bytes) -> None:
        read = partial(_read, program, trace.target)
        if len(data) <= LARGE_BYTES:
            self._looked(trace, kind, read(data))
        elif not self._is_reading:
            self._is_reading = True
            task = self._loop.create_task(self._readers.read(len(data), lambda: data, read, kind.owner))
            task.add_done_callback(partial(self._was_read, trace, kind))

    def _was_read(self, trace: RequestTrace, kind: PromptKind, task: asyncio.Task[SeenPrompt | None]) -> None:
        """Look at a prompt that was read beside the event loop; nothing happens if that failed."""
        self._is_reading = False
        if not task.cancelled() and task.exception() is None:
            self._looked(trace, kind, task.result())

    def _looked(self, trace: RequestTrace, kind: PromptKind, prompt: SeenPrompt | None) -> None:
        if prompt is None:
            return
        told = self._watch.prompts.looked(kind, prompt, self._watch.prefill_token_s(trace))
        if told is not None:
            trace.prompt_fault = fault_json(kind, *told)


def _read(program: str, path: str, body: bytes) -> SeenPrompt | None:
    """Return the prompt of a body, of which the router has read another form already."""
    try:
        fields = json.loads(body)
        return seen_prompt(program, path, fields) if isinstance(fields, dict) else None
    except (ValueError, RecursionError):
        return None
