"""Ranks reach the engine in its thread, and change there."""

from __future__ import annotations

from dataclasses import dataclass, field

from support.machines import compiled
from support.virtual_loop import in_real_time

from stretto import Runtime, deploy
from stretto.engines.scripted.engine import ScriptedLLM
from stretto.model.profile import Profile
from stretto.model.tasks import LLMEvent, LLMTask, Started

Rank = tuple[float, ...]


@dataclass
class Ranks:
    """A record of the ranks that the engine is given."""

    admitted: dict[int, Rank] = field(default_factory=dict)
    changed: dict[int, Rank] = field(default_factory=dict)


class NotingLLM(ScriptedLLM):
    """Runs one sequence at a time, so that others wait; after three it waits for new ranks."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__(lambda task, decode: "some words", max_running=1)
        self._ranks = ranks
        self._num_started = 0

    def step(self) -> list[LLMEvent]:
        if self._num_started == 3 and not self._ranks.changed:
            return []
        events = super().step()
        self._num_started += sum(isinstance(event, Started) for event in events)
        return events

    def admit(self, task: LLMTask, rank: Rank) -> None:
        self._ranks.admitted[task.id] = rank
        super().admit(task, rank)

    def reprioritise(self, task: int, rank: Rank) -> None:
        self._ranks.changed[task] = rank
        super().reprioritise(task, rank)


@in_real_time
async def test_what_is_handed_over_is_ranked_and_ranked_anew() -> None:
    ranks = Ranks()
    graph = compiled(
        'graph m(%xs: list[text])\n%ks = prefill([c"Read ", each %xs]) : list[kv] @llm\n'
        "%as = decode(each %ks) {max_tokens=9} : list[text] @llm\nreturn %as"
    )
    profile = Profile(per_unit_s=1.0)
    engine = deploy("llm", NotingLLM, ranks, contract="llm", policy="least_work", profile=profile)
    async with Runtime([engine]) as runtime:
        outputs = await runtime.run(graph, {"xs": [f"text {number}" for number in range(8)]})
    assert outputs["as"] == ["some words"] * 8
    assert len(set(ranks.admitted.values())) == 1, "of one primitive"
    assert ranks.changed
    assert all(rank < ranks.admitted[task] for task, rank in ranks.changed.items())
