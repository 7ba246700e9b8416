"""Prices of batches whose ops cost differently."""

from __future__ import annotations

from benchmarks.common.op_prices import Prices
from stretto.apps.vocabulary import DEFAULT
from stretto.graph.ops import OpSpec, Port
from stretto.model.profile import Profile
from stretto.model.tasks import Task
from stretto.sched.actions import StartBatch

TRANSLATE = OpSpec(
    "translate", (Port("texts", "text"),), "text", units=lambda inputs: len(str(inputs["texts"]))
)


def batch(*tasks: Task) -> StartBatch:
    return StartBatch("e", 0, 1, tasks, len(tasks))


def test_a_batch_costs_the_largest_base_and_all_its_units() -> None:
    prices = Prices({"embed": Profile(1.0, 0.25), "call": Profile(2.0, 0.5)})
    embed = Task(1, "q", "v", "embed", {"texts": ["a", "b"]}, {}, 2, ("texts",))
    call = Task(2, "q", "c", "call", {"text": "a"}, {})
    assert prices.batch_s(batch(embed, call)) == 2.0 + 2 * 0.25 + 0.5


def test_own_ops_are_priced_by_their_units() -> None:
    vocabulary = DEFAULT.with_op(TRANSLATE)
    prices = Prices({"translate": Profile(1.0, 0.25)}, specs=vocabulary.ops)
    assert prices.batch_s(batch(Task(1, "q", "t", "translate", {"texts": "abcd"}, {}))) == 2.0
