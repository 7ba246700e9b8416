"""The requests to LLMs of a graph, joined by variables, and the questions that one asks of them.

Steps between requests (joins, transforms, conditions) are looked through: what they make comes of all
requests that they read from.

Source: Parrot §4.2: GetProducer, GetConsumers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from stretto.graph.graph import ANSWER, Constant, Graph, Primitive, Slot
from stretto.graph.op_table import OPS
from stretto.graph.ops import Ops
from stretto.model.errors import GraphError


@dataclass(frozen=True, slots=True)
class AnalysedRequest:
    """A request to an LLM: a prompt whose slots are variables, and the variable that it makes.

    Attributes:
        prompt: constants, and names of variables in `Slot`s.
        reads: names of the variables in the prompt and of the guard, each once, in order.
        makes: name of the variable that the LLM generates.
    """

    name: str
    prompt: tuple[Constant | Slot, ...]
    reads: tuple[str, ...]
    makes: str


@dataclass(frozen=True)
class RequestGraph:
    """The requests of a program and the variables between them.

    Attributes:
        requests: the requests, each after those that it depends on.
        comes_of: variables that a step between requests reads, by the variable that it makes.
    """

    requests: tuple[AnalysedRequest, ...]
    comes_of: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, graph: Graph, ops: Ops = OPS) -> RequestGraph:
        """Return the requests of a graph before optimisation.

        A variable has the name of the graph's input or output that it is, else that of its step.

        Raises:
            GraphError: a decode continues what is no prefill.
        """
        names = {(ref.name, ref.port): name for name, ref in graph.outputs if ref.index is None}

        def name_of(primitive: str, port: str = "") -> str:
            return names.get((primitive, port), f"{primitive}.{port}" if port else primitive)

        requests: list[AnalysedRequest] = []
        comes_of: dict[str, tuple[str, ...]] = {}
        for primitive in graph:
            spec = ops.spec(primitive)
            if spec.makes_text:
                requests.append(_request(graph, ops, primitive, name_of(primitive.name), name_of))
            elif not spec.computes_prompt:
                read = tuple(name_of(arg.ref.name, arg.ref.port) for arg in primitive.args)
                for port in spec.outputs:
                    comes_of[name_of(primitive.name, port)] = read
        return cls(tuple(requests), comes_of)

    @cached_property
    def _by_variable(self) -> Mapping[str, AnalysedRequest]:
        return {request.makes: request for request in self.requests}

    @cached_property
    def _readers(self) -> Mapping[str, tuple[AnalysedRequest, ...]]:
        found: dict[str, list[AnalysedRequest]] = {}
        for request in self.requests:
            for variable in request.reads:
                found.setdefault(variable, []).append(request)
        return {variable: tuple(readers) for variable, readers in found.items()}

    def producer(self, variable: str) -> AnalysedRequest | None:
        """Return the request that generates a variable; None if it is an input or made by another step."""
        return self._by_variable.get(variable)

    def consumers(self, variable: str) -> tuple[AnalysedRequest, ...]:
        """Return the requests in whose prompt a variable stands, or that it guards."""
        return self._readers.get(variable, ())

    def sources(self, variable: str) -> tuple[AnalysedRequest, ...]:
        """Return the requests that a variable directly comes of: its producer, or those of all that the steps
        between read.
        """
        found: dict[str, AnalysedRequest] = {}
        seen = {variable}
        stack = [variable]
        while stack:
            name = stack.pop()
            if (request := self._by_variable.get(name)) is not None:
                found[request.name] = request
                continue
            new = [one for one in dict.fromkeys(self.comes_of.get(name, ())) if one not in seen]
            seen.update(new)
            stack += reversed(new)
        return tuple(found.values())

    @cached_property
    def predecessors(self) -> Mapping[str, tuple[str, ...]]:
        """The names of the requests that each request directly depends on, by its name."""
        found = {}
        for request in self.requests:
            sources = (source.name for variable in request.reads for source in self.sources(variable))
            found[request.name] = tuple(dict.fromkeys(sources))
        return found


def _request(
    graph: Graph, ops: Ops, decode: Primitive, makes: str, name_of: Callable[[str, str], str]
) -> AnalysedRequest:
    kv = decode.arg("kv")
    prefill = None if kv is None else graph.by_name.get(kv.ref.name)
    if prefill is None or not ops.spec(prefill).computes_prompt:
        raise GraphError(f"%{decode.name}: it continues no prefill of the graph")
    of_port = {
        arg.port: name_of(arg.ref.name, "" if arg.ref.port == ANSWER else arg.ref.port)
        for arg in prefill.args
    }
    prompt = tuple(Slot(of_port[part.port]) if isinstance(part, Slot) else part for part in prefill.prompt)
    return AnalysedRequest(decode.name, prompt, tuple(dict.fromkeys(of_port.values())), makes)
