"""An app whose answers decide what it asks next, as the planner takes it: a template, the models of its
engines, and distributions of the answers that decide.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property

from stretto.apps.plan_cache import PlanCache
from stretto.apps.template import Template
from stretto.graph.execution_graph import ExecutionGraph
from stretto.model.errors import ConfigError
from stretto.model.tasks import Decode
from stretto.planner.deciding.answer_beliefs import AnswerBelief, of_form, of_word
from stretto.planner.deciding.program_calls import ProgramCalls
from stretto.planner.deciding.query_calls import QueryCalls, check_llm_alone
from stretto.planner.token_counts import tokens_of
from stretto.programs.decided import DecidedProgram
from stretto.programs.fragment import Fragment

_PASSES = ("prune_order", "drop_dead")
"""Passes that leave calls as they are: steps that need nothing of each other run side by side."""
_FEW_ITEMS = 3
"""Assumed length of a list without a limit."""
LENGTH = "length"
"""Declared in place of answers of a step whose length alone decides."""


@dataclass
class DecidingApp:
    """An app of LLM calls, conditions and expansions, or a program of LLM calls.

    Attributes:
        models: model of each engine, by name; an engine that is not there has the name of its model.
        declared: distribution of the answers of steps, by name or pattern of names; `LENGTH` if their length
            decides.
        count: returns the tokens of a part of a prompt.
        learned: answers of earlier calls of steps that decide.
        lengths: number of answers of each length in tokens, of earlier runs, by step.
        inner_steps: steps that expansions were seen to make.

    Raises:
        ConfigError: a step runs on an engine that is no LLM, or an input cannot stand in a line of JSON.
    """

    template: Template
    models: Mapping[str, str] = field(default_factory=dict)
    declared: Mapping[str, AnswerBelief | str] = field(default_factory=dict)
    count: Callable[[str], int] = tokens_of
    learned: dict[str, Counter[str]] = field(default_factory=dict)
    lengths: dict[str, Counter[int]] = field(default_factory=dict)
    inner_steps: dict[str, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._cache = PlanCache({}, self.template.vocabulary)
        self._words: dict[str, AnswerBelief] = {}
        self._decodes: dict[str, Decode] = {}
        self._seen: set[int] = set()
        self._looking = threading.Lock()
        for name, type_ in self.template.inputs:
            if type_ not in ("text", "list[text]", "any", "number", "bool"):
                raise ConfigError(f"{self.name}: input {name!r} is a {type_}, which no line of JSON can have")
        self._look_at(self.egraph)

    @property
    def name(self) -> str:
        """Name of the app."""
        return self.template.name

    @cached_property
    def egraph(self) -> ExecutionGraph:
        """The graph that a query begins with."""
        return self._cache.plan(self.template, {}, _PASSES)

    def query(self) -> QueryCalls:
        """Return a query that has not begun."""
        if isinstance(self.template, DecidedProgram):
            return ProgramCalls(self.template, self.egraph, self._compiled, self._expand)
        return QueryCalls(self.egraph, self._expand)

    def check_waited(self, steps: Iterable[str]) -> None:
        """Check that something is known of the answers for which the Python of a program waits.

        Raises:
            ConfigError: nothing is known of those of a step.
        """
        for step in steps:
            if self.pattern_of(step) is None and self.belief_of(step, self._decodes[step]) is None:
                raise ConfigError(
                    f"{self.name}: its Python waits for the answer of step {step!r}, which may decide what "
                    "it asks next; declare a distribution of its answers (`answers`), or that their length "
                    "decides, or let it learn from runs (`learn_from`)"
                )

    def model_of(self, engine: str) -> str:
        """Return the model of an engine."""
        return self.models.get(engine, engine)

    def belief_of(self, step: str, decode: Decode) -> AnswerBelief | None:
        """Return what is believed about the answers of a step; None if it is not known to decide by more than
        the length of its answers.
        """
        pattern = self.pattern_of(step)
        given = None if pattern is None else self.declared[pattern]
        if given == LENGTH:
            return None
        belief = given if isinstance(given, AnswerBelief) else None
        if belief is None and decode.items is not None:
            belief = AnswerBelief({str(decode.max_items or _FEW_ITEMS): 1.0}, "assumed")
        belief = belief or of_form(decode) or self._words.get(step)
        found = self.learned.get(step)
        if belief is None and found and isinstance(self.template, DecidedProgram):
            repeats = 2 * len(found) <= found.total()
            return AnswerBelief(dict(found), "learned", found.total()) if repeats else None
        return belief.updated(dict(found)) if belief and found else belief

    def pattern_of(self, step: str) -> str | None:
        """Return the name or pattern under which a distribution of a step's answers is declared."""
        return next((one for one in self.declared if one == step or fnmatchcase(step, one)), None)

    def note(self, step: str, decode: Decode, answer: object) -> None:
        """Count an answer of a step, if its answers decide."""
        if self.belief_of(step, decode) is not None:
            key = str(len(answer)) if isinstance(answer, list) else str(answer)
            self.learned.setdefault(step, Counter())[key] += 1

    def _compiled(self, fragment: Fragment) -> tuple[ExecutionGraph, Sequence[str]]:
        """Return the graph of calls that a program makes together."""
        egraph, names = self._cache.plan_form(fragment.form, fragment.build, _PASSES)
        self._joining(egraph)
        return egraph, names

    def _expand(self, body: str, inputs: Mapping[str, object]) -> ExecutionGraph:
        sub = self._cache.expand(body, inputs, _PASSES)
        self._joining(sub)
        return sub

    def _joining(self, egraph: ExecutionGraph) -> None:
        """Check a graph that joins a query's, and note its steps."""
        if id(egraph) not in self._seen:
            self._look_at(egraph)
        for node in egraph.nodes:
            if node.decode is not None:
                self.inner_steps[node.name] = None
                self._decodes[node.name] = node.decode

    def _look_at(self, egraph: ExecutionGraph) -> None:
        """Check a graph, and note the words that its conditions look for."""
        check_llm_alone(egraph, self.name)
        with self._looking:
            self._seen.add(id(egraph))
            words: dict[str, list[str]] = {}
            for node in egraph.nodes:
                word = node.config.get("equals")
                if node.op == "condition" and isinstance(word, str):
                    for step, _ in steps_behind(egraph, node.ins[0].value):
                        words.setdefault(step, []).append(word)
            for step, said in words.items():
                beliefs = [dict(of_word(word).weights) for word in said]
                merged = {text: 1.0 for one in beliefs for text in one}
                self._words.setdefault(step, AnswerBelief(merged, "assumed"))
            for node in egraph.nodes:
                if node.op == "expand":
                    self._check_expand(egraph, node.id)

    def _check_expand(self, egraph: ExecutionGraph, number: int) -> None:
        """Check that something is known of the answers that an expansion reads."""
        node = egraph.nodes[number]
        found = [pair for arg in node.ins if not arg.each for pair in steps_behind(egraph, arg.value)]
        if found and all(
            self.pattern_of(step) is None and self.belief_of(step, decode) is None for step, decode in found
        ):
            names = ", ".join(repr(step) for step, _ in found)
            raise ConfigError(
                f"{self.name}: the answers of {names} decide what step {node.name!r} becomes; declare a "
                "distribution of the answers of one of them (`answers`), or that their length decides"
            )


def steps_behind(egraph: ExecutionGraph, value: int) -> Iterator[tuple[str, Decode]]:
    """Yield the steps, called once each, one of whose answers a value is, each with its settings."""
    makers = {out: node for node in egraph.nodes for out in node.outs}
    node = makers.get(value)
    if node is None or node.is_mapped:
        return
    if node.decode is not None:
        yield node.name, node.decode
    elif node.op == "select":
        for arg in node.ins:
            yield from steps_behind(egraph, arg.value)
    elif node.op == "condition":
        yield from steps_behind(egraph, node.ins[0].value)
