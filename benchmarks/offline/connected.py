"""Planned applications whose nodes wait for each other or share devices, each run once in real time:

    python -m benchmarks.offline.connected debate 101 --speed 0.5

on eight emulated A100s. `refine`: one model drafts and revises; `debate`: three models in two rounds and a
judge; `rag`: a rewriter, a reranker that reads each passage, an answer and a check; `twelve`: models that
are asked unequally often. The texts of nodes stand behind those of requests, as servers compute once what
all prompts of a node begin with, which plans do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from json import dumps
from typing import Annotated

import numpy as np
import typer

from benchmarks.offline.emulated import run_emulated, with_texts
from benchmarks.offline.measured import Work
from benchmarks.planner.applications import ENSEMBLE
from stretto.planner.application import Application, AppRequest, ModelNode
from stretto.planner.prompt_slots import constant_text
from stretto.planner.token_counts import tokens_of
from stretto.sim.synthetic_output import filler

_VICUNA, _MISTRAL, _MPT = "vicuna-13b-v1.5", "Mistral-7B-Instruct-v0.2", "mpt-7b-chat"
_TWELVE = (*ENSEMBLE, "Llama-2-13b-hf", _MISTRAL, "gpt-j-6b")


def _refine(random: np.random.Generator) -> tuple[list[ModelNode], list[AppRequest]]:
    nodes = [ModelNode("draft", _VICUNA, 256), ModelNode("refine", _VICUNA, 256, inputs=("draft",))]
    return nodes, [AppRequest(f"q{at}", int(random.integers(30, 290))) for at in range(600)]


def _debate(random: np.random.Generator) -> tuple[list[ModelNode], list[AppRequest]]:
    models = {"a": _VICUNA, "b": _MISTRAL, "c": _MPT}
    first = [ModelNode(name, model, 300) for name, model in models.items()]
    second = [
        ModelNode(f"{name}2", model, 300, 50, tuple(other for other in models if other != name))
        for name, model in models.items()
    ]
    judge = ModelNode("judge", "CodeLlama-34b-Instruct-hf", 120, 200, ("a2", "b2", "c2"))
    return [*first, *second, judge], [
        AppRequest(f"q{at}", int(random.integers(30, 290))) for at in range(300)
    ]


def _rag(random: np.random.Generator) -> tuple[list[ModelNode], list[AppRequest]]:
    nodes = [
        ModelNode("rewrite", "chatglm3-6b", 40, 60),
        ModelNode("rerank", _MISTRAL, 4, 80, map=True),
        ModelNode("answer", "Llama-2-13b-hf", 256, 120, ("rewrite", "rerank")),
        ModelNode("check", _VICUNA, 8, 80, ("answer",)),
    ]
    return nodes, [
        AppRequest(f"q{at}", int(random.integers(20, 60)), (400,) * int(random.integers(4, 13)))
        for at in range(300)
    ]


def _twelve(random: np.random.Generator) -> tuple[list[ModelNode], list[AppRequest]]:
    shares = 1 / np.arange(1, len(_TWELVE) + 1)
    models = random.choice(len(_TWELVE), 1800, p=shares / shares.sum())
    return [ModelNode(model, model, 256) for model in _TWELVE], [
        AppRequest(f"q{at}", int(random.integers(20, 300)), (), (_TWELVE[model],))
        for at, model in enumerate(models)
    ]


_Made = tuple[list[ModelNode], list[AppRequest]]
APPS: Mapping[str, tuple[int, Callable[[np.random.Generator], _Made]]] = {
    "refine": (11, _refine),
    "debate": (12, _debate),
    "rag": (13, _rag),
    "twelve": (14, _twelve),
}
"""What makes each application, with a number that sets its random choices apart."""


def work_of(name: str, seed: int) -> Work:
    """Return an application of `APPS` with its requests and texts."""
    number, make = APPS[name]
    nodes, requests = make(np.random.default_rng([seed, number]))
    return with_texts(name, Application(name, list(map(_with_prompt, nodes))), requests, seed)


def _with_prompt(node: ModelNode) -> ModelNode:
    """Return a node with a prompt of as many tokens as it has."""
    if not node.prompt_tokens:
        return node
    text = filler(f"{node.name} task", node.prompt_tokens)
    asked = "{chunk}" if node.is_by_chunk else "{prompt}"
    prompt = "\n\n".join([asked, text, *(f"{{{name}}}" for name in node.inputs)])
    return ModelNode(
        node.name,
        node.model,
        node.max_tokens,
        tokens_of(constant_text(prompt)),
        node.inputs,
        map=node.map,
        prompt=prompt,
    )


def main(
    name: Annotated[str, typer.Argument(help=", ".join(APPS))],
    seed: int,
    speed: Annotated[float, typer.Option(help="Emulated seconds in a real one.")] = 1.0,
) -> None:
    """Run an application once; print what was measured as JSON, in real seconds."""
    print(dumps({"app": name, "seed": seed, **asdict(run_emulated(work_of(name, seed), "stretto", speed))}))


if __name__ == "__main__":
    typer.run(main)
