"""Applications as calls to an LLM whose prompts may hold the answers of others, and the graph of one.

The same workflow is run in two ways: by a client that sends each call when its inputs are there, and by the
service, which gets all calls at once as one graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from stretto.costs.mean_output import num_tokens
from stretto.graph.graph import Arg, Graph, Primitive, Ref, Slot, config_items
from stretto.model.tasks import Objective

ENGINE = "llm"


@dataclass(frozen=True, slots=True)
class Output:
    """The answer of another call, as a part of a prompt."""

    call: str


Part: TypeAlias = "str | Output"


@dataclass(frozen=True, slots=True)
class Call:
    """One call to the LLM.

    Attributes:
        parts: the prompt. Each part is tokenised by itself.
        num_output: length of the answer in tokens.
        num_static: number of leading parts that the developer could declare as a prefix of many prompts.
    """

    name: str
    parts: tuple[Part, ...]
    num_output: int
    num_static: int = 0

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the calls whose answers it reads, each once."""
        return tuple(dict.fromkeys(part.call for part in self.parts if isinstance(part, Output)))


@dataclass(frozen=True)
class Workflow:
    """One run of an application, which ends when all answers that no other call reads have come.

    Attributes:
        kind: name of the application.
        calls: calls in an order in which each comes after those that it reads.
        criteria: objective of the user who waits for the results.
    """

    kind: str
    calls: tuple[Call, ...]
    criteria: Objective = "latency"

    @cached_property
    def results(self) -> Mapping[str, Call]:
        """The calls whose answers no other call reads, by name."""
        read = {source for call in self.calls for source in call.sources}
        return {call.name: call for call in self.calls if call.name not in read}

    @property
    def num_output(self) -> int:
        """Number of tokens of all results together."""
        return sum(call.num_output for call in self.results.values())

    @cached_property
    def texts(self) -> Mapping[str, str]:
        """The texts of all prompts, each once, by the names of the graph's inputs."""
        found = dict.fromkeys(part for call in self.calls for part in call.parts if isinstance(part, str))
        return {f"text{number}": text for number, text in enumerate(found)}

    @cached_property
    def prompt_tokens(self) -> int:
        """Number of tokens of all prompts together."""
        return sum(map(self.tokens_of, self.calls))

    def tokens_of(self, call: Call) -> int:
        """Return the number of tokens of the prompt of one of the calls."""
        return sum(
            self._outputs[part.call] if isinstance(part, Output) else num_tokens(part) for part in call.parts
        )

    @cached_property
    def _outputs(self) -> Mapping[str, int]:
        return {call.name: call.num_output for call in self.calls}

    def graph(self) -> Graph:
        """Return the workflow as one graph. Its inputs are the texts, its outputs are the results."""
        name_of = {text: name for name, text in self.texts.items()}
        primitives: list[Primitive] = []
        for call in self.calls:
            prompt = f"{call.name}.prompt"
            refs = [Ref(part.call if isinstance(part, Output) else name_of[part]) for part in call.parts]
            ports = [f"part{number}" for number in range(len(refs))]
            args = tuple(Arg(port, ref) for port, ref in zip(ports, refs, strict=True))
            slots = tuple(Slot(port) for port in ports)
            settings = config_items({"max_tokens": call.num_output})
            primitives.append(Primitive(prompt, "prefill", args, slots, engine=ENGINE))
            primitives.append(
                Primitive(call.name, "decode", (Arg("kv", Ref(prompt)),), (), settings, engine=ENGINE)
            )
        inputs = tuple((name, "text") for name in self.texts)
        outputs = tuple((name, Ref(name)) for name in self.results)
        return Graph(self.kind, inputs, tuple(primitives), (), outputs)


@dataclass(frozen=True)
class Arrival:
    """A workflow that a user starts at `at_s`, in seconds."""

    at_s: float
    workflow: Workflow
