"""Calls of the nodes of an application, with lengths of their prompts and drawn lengths of their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stretto.costs.step_arrays import Ints
from stretto.planner.application import ModelNode
from stretto.planner.feed import Feed


@dataclass(frozen=True, slots=True)
class NodeCalls:
    """The calls of one node, in the order of the requests.

    Attributes:
        requests: number of each call's request.
        numbers: number of each call among those of its request.
        own_tokens: tokens of each prompt without the answers of other calls of the workload.
        previous: call whose answer each prompt also has; -1 for none.
        known: tokens of each answer if known; else -1.
        generated: tokens of each answer so far.
    """

    node: ModelNode
    requests: Ints
    numbers: Ints
    own_tokens: Ints
    previous: Ints
    known: Ints
    generated: Ints

    @property
    def wholes(self) -> Ints:
        """Number of the whole that each call belongs to, which one replica does: its request, or each call of
        a map by itself.
        """
        return np.arange(len(self.requests)) if self.node.map else self.requests


@dataclass(frozen=True, slots=True)
class DrawnCalls:
    """The calls of one node with one draw of the lengths of all answers.

    Attributes:
        prompts: tokens of each prompt, and of its answer so far.
        outputs: tokens that each call still generates.
        feeds: answers of each input that the prompts take.
    """

    calls: NodeCalls
    prompts: Ints
    outputs: Ints
    feeds: Mapping[str, Feed]


@dataclass(frozen=True, slots=True)
class ModelCalls:
    """Calls of one model's nodes with one draw of the lengths of all answers.

    Attributes:
        prompts, outputs: numbers of tokens as in `DrawnCalls`.
        previous: call among these whose answer each prompt also has; -1 for none.
        wholes: number of the whole that each call belongs to, which one replica does.
    """

    prompts: Ints
    outputs: Ints
    previous: Ints
    wholes: Ints


def calls_together(nodes: Sequence[DrawnCalls]) -> ModelCalls:
    """Return the calls of several nodes of a model, one node after the other. The calls for a request are one
    whole, but each call of a map is one by itself.
    """
    previous: list[Ints] = []
    wholes: list[Ints] = []
    first_call = first_whole = 0
    for one in nodes:
        calls = one.calls
        previous.append(np.where(calls.previous < 0, -1, calls.previous + first_call))
        wholes.append(calls.wholes + (first_whole if calls.node.map else 0))
        first_call += len(calls.requests)
        first_whole = 1 + max(int(numbers.max(initial=-1)) for numbers in wholes)
    return ModelCalls(
        np.concatenate([one.prompts for one in nodes]),
        np.concatenate([one.outputs for one in nodes]),
        np.concatenate(previous),
        np.concatenate(wholes),
    )
