"""What arrives: programs of several kinds, each of one query or of several with pauses in between.

All that a program asks for is known here: the number of its turns, the widths of its graphs, the lengths of
its answers and the seconds of its tools. The schedulers learn of it only as it happens.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from benchmarks.programs import recorded
from stretto.model.tasks import Objective
from stretto.sim.synthetic_output import filler

CHAT, AGENT, RAG, MAP_REDUCE, BATCH = "chat", "agent", "rag", "map_reduce", "batch"
ONE_CALL_KINDS = (CHAT, AGENT, BATCH)
"""Kinds whose queries are one call of the LLM each."""
WARM_SHARE = 0.2
"""Share of the time in which programs arrive whose programs figures do not count."""
FAN_IN = 8
"""Summaries that are merged by one call."""

_MEDIANS = {"queries": 40, "reading": 90, "answer": 140, "summary": 90, "merged": 140}


@dataclass(frozen=True, slots=True)
class MixedQuery:
    """One query of a program.

    Attributes:
        texts: the parts of its prompt or question, or the passages of `map_reduce`. Prompts that go on from
            others share the objects.
        pause_s: seconds after the end of the program's query before, in which a tool runs.
    """

    name: str
    kind: str
    texts: tuple[str, ...]
    pause_s: float = 0.0

    @property
    def width(self) -> int:
        """Number of passages, for the kind that has some; else 0."""
        return len(self.texts) if self.kind == MAP_REDUCE else 0

    def inputs(self) -> dict[str, object]:
        """Return the inputs of its graph."""
        if self.kind == MAP_REDUCE:
            return {"passages": list(self.texts)}
        return {"question" if self.kind == RAG else "prompt": "".join(self.texts)}


@dataclass(frozen=True, slots=True)
class MixedProgram:
    """A program: its queries go one after the other.

    Attributes:
        at: time of arrival as a share of the time in which programs arrive, between 0 and 1.
        deadline: seconds from its arrival until its deadline, for each second that it takes alone; None
            without one.
        window: the same, for each second in which programs arrive; None without one.
    """

    name: str
    kind: str
    at: float
    queries: tuple[MixedQuery, ...]
    tenant: str = ""
    objective: Objective = "throughput"
    deadline: float | None = None
    window: float | None = None

    @property
    def is_offline(self) -> bool:
        """Whether it takes what others leave; then it is no part of the load."""
        return self.objective == "offline"

    @property
    def is_counted(self) -> bool:
        """Whether figures count it: servers are empty at first, and nothing has been learned yet."""
        return self.is_offline or self.at >= WARM_SHARE

    def due_s(self, lone_s: float, duration_s: float) -> float | None:
        """Return the seconds from its arrival until its deadline; None without one.

        Args:
            lone_s: seconds that it takes alone.
            duration_s: seconds in which programs arrive.
        """
        if self.window is not None:
            return self.window * duration_s
        return None if self.deadline is None else self.deadline * lone_s


def written_tokens(query: str, kind: str, step: str, item: int) -> int:
    """Return the tokens of the answer of a step of a query, which depends on nothing else."""
    draw = Random(f"{query}/{step}/{item}")
    if kind == AGENT:
        return recorded.agent_written_tokens(draw)
    if kind in ONE_CALL_KINDS:
        return recorded.chat_written_tokens(draw)
    return recorded.step_written_tokens(draw, _MEDIANS[step.split(".")[0]])


def text_of(name: str, num_tokens: int) -> str:
    """Return a text of a whole number of tokens that no other text begins like."""
    return filler(name, num_tokens) + "|"


def answer_text(query: str, kind: str) -> str:
    """Return the answer of a query of one call, as the simulated LLM writes it, at its place in a prompt."""
    return text_of(f"{query}/text", written_tokens(query, kind, "text", 0))
