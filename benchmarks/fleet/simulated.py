"""The apps in virtual time on the same fleet: the same schedulers, step costs, texts, vectors and scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from benchmarks.fleet.apps import APPS, VOCABULARY
from benchmarks.fleet.layout import Planned
from benchmarks.fleet.measures import Ran
from benchmarks.fleet.programs.ours_engines import Passages, document_of, passage_of
from benchmarks.fleet.schemes import Scheme
from benchmarks.fleet.work import Answered, Asked
from stretto.apps.plan_cache import PlanCache
from stretto.costs.output_lengths import OutputLengths, output_lengths
from stretto.emulate.answer_lengths import RecordedLengths
from stretto.emulate.batch_routes import relevance, vector_of
from stretto.emulate.prepared import prepare
from stretto.emulate.tokens import FOUR_CHARACTERS
from stretto.engines.batch.applications import OpApplication, answer_batch
from stretto.engines.batch.vectors import MemoryVectors, MemoryVectorsConfig
from stretto.engines.scripted.engine import ScriptedLLM
from stretto.llm.output.output import DecodeOutput
from stretto.model.deployment import Deployment, deploy
from stretto.model.tasks import Decode, Done, LLMEvent, LLMTask, Piece, Task
from stretto.model.values import Hit, Prompt, as_text, document_order
from stretto.sched.vocabulary import Vocabulary
from stretto.sim.driver import VirtualDriver
from stretto.sim.synthetic_output import SyntheticOutput
from stretto.wire.options import Options
from stretto.wire.requests import CompletionRequest

ANSWER_LENGTHS = output_lengths(dict.fromkeys(range(16, 113, 4), 1))
"""Lengths of answers that the emulated servers draw from, in tokens."""

_UNLIMITED = 1_000_000


class EmulatedVectors:
    """A batch engine with the vectors of the emulated embedding servers."""

    def __init__(self, config: object) -> None:
        """Make the engine. It has no settings."""

    def run(self, tasks: Sequence[Task]) -> list[object]:
        """Embed the texts of all tasks."""
        return answer_batch(tasks, {"embed": lambda several: [_vector(_text(one)) for one in several]})

    def release(self, query: str) -> None:
        """Do nothing: nothing is kept for a query."""

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


class EmulatedScores:
    """A batch engine with the scores of the emulated reranking servers."""

    def __init__(self, config: object) -> None:
        """Make the engine. It has no settings."""

    def run(self, tasks: Sequence[Task]) -> list[object]:
        """Score the hits of all tasks."""
        return answer_batch(tasks, {"rerank": lambda several: list(map(_rerank, several))})

    def release(self, query: str) -> None:
        """Do nothing: nothing is kept for a query."""

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


@dataclass(frozen=True)
class SimulatedFleet:
    """A fleet in virtual time."""

    planned: Planned
    lengths: OutputLengths = ANSWER_LENGTHS

    def run(
        self,
        scheme: Scheme,
        app: str,
        asked: Sequence[Asked],
        vocabulary: Vocabulary = VOCABULARY,
    ) -> Ran:
        """Run queries of an app to their end. Raises the error of a query that fails."""
        chosen = APPS[app]
        engines = self.engines(scheme)
        plan_cache = PlanCache({engine.name: engine.profile for engine in engines}, vocabulary)
        simulated = replace(self.planned.llm.simulated, output_source=self.output, tokenize=_tokens)
        driver = VirtualDriver(
            engines, expand=plan_cache.expand, models={"llm": simulated}, vocabulary=vocabulary
        )
        plan = plan_cache.plan(chosen.template, chosen.configuration, scheme.passes)
        for one in asked:
            inputs = inputs_of(app, one)
            driver.submit(one.name, plan, inputs, at_s=one.at_s, passes=scheme.passes)
        replies = driver.run()
        answered = []
        for one in asked:
            reply, end_s = replies[one.name], driver.recorder.queries[one.name].end_s
            if reply.error is not None:
                raise reply.error
            assert reply.outputs is not None
            assert end_s is not None
            answered.append(answered_of(one.name, end_s, reply.outputs))
        return Ran(tuple(one.at_s for one in asked), tuple(answered))

    def engines(self, scheme: Scheme) -> list[Deployment]:
        """Return the engines as a scheme uses them."""
        profiles = self.planned.profiles()
        layout = self.planned.layout
        found = [
            deploy("chunking", Passages, profile=profiles["chunking"]),
            deploy("embedding", EmulatedVectors, profile=profiles["embedding"]),
            deploy("reranking", EmulatedScores, profile=profiles["reranking"]),
            deploy(
                "vectors",
                MemoryVectors,
                MemoryVectorsConfig(),
                keeps_state=True,
                max_batch=1024,
                profile=profiles["vectors"],
            ),
            deploy(
                "llm",
                EmulatedWriter,
                self,
                instances=layout.num_llms,
                contract="llm",
                max_running=_UNLIMITED if scheme.sends_all else layout.max_sequences,
                max_batch=_UNLIMITED if scheme.sends_all else self.planned.kv_tokens,
                placement=scheme.placement,
                profile=profiles["llm"],
            ),
        ]
        return [engine.changed(policy=scheme.policy, fill_timeout_s=0.0, timeout_s=None) for engine in found]

    def output(self, task: LLMTask, decode: Decode) -> SyntheticOutput:
        """Return the answer of an emulated server to a task."""
        return self.answer(task.prompt, decode)

    def answer(self, prompt: Prompt, decode: Decode) -> SyntheticOutput:
        """Return the answer of an emulated server to a prompt."""
        return self._written("".join(segment.text for segment in prompt), decode)

    @cached_property
    def _known(self) -> dict[tuple[str, Decode], SyntheticOutput]:
        return {}

    def _written(self, prompt: str, decode: Decode) -> SyntheticOutput:
        key = prompt, decode
        if key not in self._known:
            self._known[key] = self._write(prompt, decode)
        return self._known[key]

    def _write(self, prompt: str, decode: Decode) -> SyntheticOutput:
        output, ends, num_tokens = DecodeOutput(decode), [], 0
        for piece in self._pieces(prompt, decode.max_tokens):
            num_tokens += 1
            complete, is_finished = output.feed(piece)
            ends += [num_tokens] * len(complete)
            if is_finished:
                break
        _, value = output.finish()
        assert isinstance(value, str | list)
        return SyntheticOutput(value, num_tokens, tuple(ends) if decode.items else ())

    def _pieces(self, prompt: str, max_tokens: int) -> Sequence[str]:
        request = CompletionRequest(prompts=(prompt,), options=Options(max_tokens=max_tokens))
        length = RecordedLengths({}, self.lengths)
        (choice,) = prepare(request, self.planned.llm.served, length).choices
        return choice.answer.pieces


class EmulatedWriter(ScriptedLLM):
    """An LLM that writes the texts of a fleet's servers, each in one piece, for bounds."""

    def __init__(self, fleet: SimulatedFleet) -> None:
        """Make the LLM of a fleet."""
        super().__init__(lambda task, decode: "", 1)
        self._fleet = fleet

    def sequence(self, task: LLMTask) -> Iterator[list[LLMEvent]]:
        """Run a task in one turn. Its pieces are the items of a list, or the whole text."""
        assert task.decode is not None
        value = self._fleet.output(task, task.decode).value
        pieces = value if isinstance(value, list) else [value]
        yield [*(Piece(task.id, piece) for piece in pieces), Done(task.id, value)]


def inputs_of(app: str, asked: Asked) -> dict[str, object]:
    """Return the inputs of a query, as the app's template takes them."""
    known = {"question": asked.question, "files": [document_of(one) for one in asked.documents]}
    return {name: known[name] for name in dict(APPS[app].template.inputs)}


def answered_of(name: str, end_s: float, outputs: Mapping[str, object]) -> Answered:
    """Return the end of a query that gave these outputs."""
    sources = outputs.get("sources", [])
    assert isinstance(sources, list)
    places = tuple((p.source, p.index) for p in map(passage_of, sources))
    return Answered(name, end_s, str(outputs["answer"]), places)


def _tokens(prompt: Prompt) -> list[int]:
    return FOUR_CHARACTERS.encode("".join(segment.text for segment in prompt))


@lru_cache(maxsize=65536)
def _vector(text: str) -> object:
    return vector_of(text)


_relevance = lru_cache(maxsize=1_000_000)(relevance)


def _text(application: OpApplication) -> str:
    return as_text(application.require("texts", object))


def _rerank(application: OpApplication) -> list[Hit]:
    question, hits = application.require("question", str), application.require("hits", list)
    return document_order([Hit(hit.chunk, _relevance(question, as_text(hit))) for hit in hits])
