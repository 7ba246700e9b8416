"""Parts of your own: an op, the engine that runs it, a component that stands for it, and a pass.

The app runs twice: for real, and in the simulator, where the engine's profile says how long it takes.

python examples/own_parts.py
stretto explain --app examples/own_parts.py:app

`profile_engine(dictionary, print, vocabulary.ops)` of `stretto.engines.profiling` measures the engine with
the batches of `OpSpec.workloads`. What else a row and an engine may have is said at `OpSpec` and at
`BatchEngine` (`stretto/engines/contract.py`).
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from stretto import DEFAULT, Component, Input, Runtime, Task, Template, deploy
from stretto.apps.components.builder import Builder
from stretto.apps.plan_cache import PlanCache
from stretto.engines.batch.applications import OpApplication, answer_batch
from stretto.engines.contract import BatchEngine
from stretto.graph.graph import Graph, Ref
from stretto.graph.ops import MeasuredBatch, Ops, OpSpec, Port
from stretto.graph.passes.base import Profiles
from stretto.model.profile import Profile
from stretto.sched.actions import Reply
from stretto.sim.driver import VirtualDriver


def batches() -> Iterator[MeasuredBatch]:
    """Batches of growing size, by which the engine is measured."""
    for num_texts in (1, 2, 4, 8):
        yield MeasuredBatch(num_texts, {"texts": ["hello world"] * num_texts}, each=("texts",))


TRANSLATE = OpSpec("translate", (Port("texts", "text"),), "text", workloads=batches)


@dataclass(frozen=True)
class DictionaryConfig:
    """Words and what they become."""

    words: Mapping[str, str]


class Dictionary(BatchEngine):
    """A batch engine: one call for all texts of all queries that wait together."""

    op_names = (TRANSLATE.name,)

    def __init__(self, config: DictionaryConfig) -> None:
        self._words = config.words

    def run(self, tasks: Sequence[Task]) -> list[object]:
        return answer_batch(tasks, {TRANSLATE.name: self._translate})

    def _translate(self, applications: Sequence[OpApplication]) -> list[object]:
        """Translate texts: one answer for each, in order."""
        texts = [one.require("texts", str) for one in applications]
        return [" ".join(self._words.get(word, word) for word in text.split()) for text in texts]


class Translation(Component):
    """Translate one text, or each text of a list."""

    ports = (Port("texts", "text|list[text]"), Port("when", optional=True))
    outs = {"texts": "text|list[text]"}  # noqa: RUF012

    def out_types(self, in_types: Mapping[str, str], config: object) -> Mapping[str, str]:
        return {"texts": in_types["texts"]}

    def lower(self, build: Builder, config: object) -> Mapping[str, Ref]:
        args = [build.take_each_if_list("texts", "texts")]
        if build.is_fed("when"):  # a branch of a `Condition`: the step is skipped if that has no value
            args.append(build.take("when"))
        hints = ("batchable",)
        return {"texts": build.add("translated", "translate", tuple(args), engine="dictionary", hints=hints)}


def stream_one_by_one(graph: Graph, profiles: Profiles, ops: Ops) -> Graph:
    """A pass: translate each text as soon as it is there."""
    primitives = tuple(
        replace(p, args=tuple(replace(arg, piece=1) if arg.each else arg for arg in p.args))
        if p.op == TRANSLATE.name
        else p
        for p in graph
    )
    return graph if primitives == graph.primitives else replace(graph, primitives=primitives)


vocabulary = DEFAULT.with_op(TRANSLATE).with_pass("stream_one_by_one", stream_one_by_one)
translation = Translation(texts=Input("texts", "list[text]"))
app = Template("translate", translation, {"texts": translation["texts"]}, vocabulary)
words = DictionaryConfig({"hello": "salut", "world": "monde"})
profile = Profile(base_s=0.001, per_unit_s=0.002, max_efficient_batch=8)  # seconds of a call, and of a text
dictionary = deploy("dictionary", Dictionary, words, instances=2, profile=profile)
inputs = {"texts": ["hello world", "the world"]}


async def main() -> None:
    async with Runtime([dictionary], vocabulary=vocabulary) as runtime:
        outputs = await runtime.run(app, inputs)
        print(outputs["texts"])


def simulate() -> None:
    plan = PlanCache({"dictionary": profile}, vocabulary).plan(app, {}, vocabulary.select_passes("all"))

    def show(reply: Reply) -> None:
        print(reply.outputs, f"after {simulator.now_s:.3f} simulated seconds")

    simulator = VirtualDriver([dictionary], vocabulary=vocabulary, on_reply=show)
    simulator.submit("a query", plan, inputs)
    simulator.run()


if __name__ == "__main__":
    asyncio.run(main())
    simulate()
