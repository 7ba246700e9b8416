"""Recorded requests, checked as a door checks those that pass: programs are recognised, and the prefix guard
looks at every prompt that loses blocks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from stretto.cluster.recognition.recogniser import Recogniser
from stretto.operate.prefix.fault import Fault
from stretto.operate.prefix.guard import PrefixGuard, PromptKind
from stretto.operate.prefix.seen_prompt import seen_prompt
from stretto.router.programs import RoutedProgram
from stretto.router.prompt_watch import kind_of
from stretto.router.prompts import read_request
from stretto.router.reading import ReadingRules, RequestHead


class PromptCheck:
    """A check of recorded requests.

    Args:
        guard: what looks at them; None for one that looks at every prompt that loses blocks.

    Attributes:
        num_requests: number of requests that were checked.
        num_prompts: number of those that have a prompt as a text.
    """

    def __init__(self, guard: PrefixGuard | None = None) -> None:
        self._guard = PrefixGuard(looks_at_all=True) if guard is None else guard
        self._recogniser = Recogniser()
        self.num_requests = self.num_prompts = 0

    def add(self, path: str, fields: Mapping[str, Any]) -> RoutedProgram | None:
        """Check one more request; return its program, which is to be told when it has been answered.

        Raises:
            RequestRefused: the door would refuse it.
        """
        body = json.dumps(fields).encode()
        routed = read_request(RequestHead(path, headers=[]), ReadingRules(), body)
        self.num_requests += 1
        program = None
        if routed.asked is not None:
            program = RoutedProgram(self._recogniser, routed.asked, path, routed.num_answers)
        if routed.key is not None:
            self.num_prompts += 1
            kind, name = kind_of(path, routed), "" if program is None else program.named.name
            if self._guard.arrived(kind, name, routed.key.blocks, routed.key.block_tokens):
                self._guard.looked(kind, seen_prompt(name, path, fields))
        return program

    def faults(self) -> Iterator[tuple[PromptKind, Fault]]:
        """Yield what was found."""
        return self._guard.faults()
