"""The applications of SamuLLM's evaluation (section 5), with synthetic requests of the published sizes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stretto.planner.application import Application, AppRequest, ModelNode

ENSEMBLE = (
    "vicuna-13b-v1.5",
    "oasst-sft-4-pythia-12b-epoch-3.5",
    "alpaca-13b",
    "baize-v2-13b",
    "koala-13B-HF",
    "dolly-v2-12b",
    "mpt-7b-chat",
    "chatglm3-6b",
    "stablelm-tuned-alpha-7b",
)
ROUTED = {
    "Llama-2-70b-chat-hf": 408,
    "Mixtral-8x7B-Instruct-v0.1": 1267,
    "WizardLM-13B-V1.2": 2068,
    "CodeLlama-34b-Instruct-hf": 456,
    "Mistral-7B-Instruct-v0.2": 2657,
}
"""Requests of each model of the routing application (Table 1)."""


def mixed(*parts: tuple[Application, list[AppRequest]]) -> tuple[Application, list[AppRequest]]:
    """Return several applications as one (section 5.4); each request is for the nodes of its own."""
    requests = [
        replace(
            request, id=f"{at}.{request.id}", nodes=request.nodes or tuple(node.name for node in app.nodes)
        )
        for at, (app, requests) in enumerate(parts)
        for request in requests
    ]
    return Application("mixed", [node for app, _ in parts for node in app.nodes]), requests


def ensemble(num_requests: int, cap: int, seed: int) -> tuple[Application, list[AppRequest]]:
    """Return nine models that all answer the same requests (section 5.1).

    Prompts have 5 to 127 tokens, 21 on average; their distribution is not published, so it is a cut
    exponential one.
    """
    random = np.random.default_rng([seed, 1])
    tokens = np.clip(5 + random.exponential(16, num_requests), 5, 127).astype(int).tolist()
    nodes = [ModelNode(model, model, cap) for model in ENSEMBLE]
    requests = [AppRequest(str(at), length) for at, length in enumerate(tokens)]
    return Application("ensemble", nodes), requests


def routing(cap: int, seed: int, share: float = 1.0) -> tuple[Application, list[AppRequest]]:
    """Return five models that each answer requests of their own (section 5.2); prompts have 9 to 577 tokens,
    310 on average.
    """
    random = np.random.default_rng([seed, 2])
    requests: list[AppRequest] = []
    for model, count in ROUTED.items():
        tokens = np.clip(random.normal(310, 120, max(1, int(count * share))), 9, 577).astype(int).tolist()
        requests += [
            AppRequest(str(len(requests) + at), length, (), (model,)) for at, length in enumerate(tokens)
        ]
    return Application("routing", [ModelNode(model, model, cap) for model in ROUTED]), requests


def chain_summary(
    num_documents: int, cap: int, evaluations: int, seed: int
) -> tuple[Application, list[AppRequest]]:
    """Return documents that one model summarises chunk by chunk, and that another evaluates (section 5.3).

    Chunks have 2,048 tokens. Their number has a median of 3 and a long tail: up to 60 for 100 documents.
    """
    random = np.random.default_rng([seed, 3])
    chunks = np.clip(np.round(3 * np.exp(random.normal(0, 1.0, num_documents))), 1, 200).astype(int)
    chunks[0] = 60 if num_documents <= 100 else 201
    requests = [AppRequest(str(at), 0, (1600,) * int(count)) for at, count in enumerate(chunks)]
    nodes = [
        ModelNode("summary", "vicuna-13b-v1.5", cap, 100, chain=True),
        ModelNode("evaluator", "Llama-2-70b-chat-hf", 200, 300, ("summary",), evaluations),
    ]
    return Application("chain summary", nodes), requests
