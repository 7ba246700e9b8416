"""Requests whose prompt one worker computes, and whose answer another one writes from its KV.

A request is split while a worker of the role "prefill" and one of the role "decode" serve its model. It is
asked of the first for one token. What comes back says where the KV is, and goes with the request to the
second.

    prompt --"prefill"--> its KV is known --"decode"--> answer
      ^                                        |
      +------- the second worker failed -------+

- Workers for prompts get nothing but prompts of such requests.
- When no worker for prompts is left that has not failed a request, the request goes whole to a mixed worker,
  or if there is none to one for answers, which compute prompts too.
- When the second worker fails, the prompt is computed again: the first one keeps KV until it is fetched.
- Prefills count as no attempts of the request, except where they fail. The last attempt is whole: two workers
  would have to do well. So is the one after a worker that takes no prompt alone of the request.

Source: disaggregated prefill of vLLM, `kv_transfer_params` in its OpenAI API.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stretto.model.record import changed
from stretto.router.loads import RunningAtWorker
from stretto.router.messages import Part, WorkerUsage
from stretto.router.routed_client import Client, Prefilled
from stretto.router.workers import Worker, Workers


def able_for_part(workers: Sequence[Worker], client: Client) -> Sequence[Worker]:
    """Return those of some workers that take the next part of a request."""
    prompts = [one for one in workers if one.config.role == "prefill"]
    answers = [one for one in workers if one.config.role == "decode"]
    if client.prefilled is not None:
        return _serving(answers) or answers
    fresh = [one for one in _serving(prompts) if one.id not in client.tried]
    may_split = client.request.may_split and client.request.objective != "offline"
    if may_split and not client.stays_whole and fresh and _serving(answers):
        return fresh
    mixed = [one for one in workers if one.config.role == "mixed"]
    return _serving(mixed) or _serving(answers) or [*mixed, *answers]


def describe_part(client: Client, among: Workers) -> None:
    """Describe the next part of a request to placement policies, where workers take parts of requests: a
    prompt without an answer, or an answer whose prompt all workers for answers hold.
    """
    if not among.has_roles:
        return
    model = client.request.model
    workers = (among.listing(model) if model else ()) or among.taking()
    whole = client.whole = client.whole or client.placed
    client.placed = whole
    if client.prefilled is not None:
        answers = [one.id for one in workers if one.config.role == "decode"]
        client.placed = changed(whole, hints=dict.fromkeys(answers, whole.num_tokens))
    elif all(one.config.role == "prefill" for one in able_for_part(workers, client)):
        client.placed = changed(whole, expected_output=1)


def part_of(worker: Worker | None, client: Client) -> Part:
    """Return the part of a request that a worker takes."""
    if client.prefilled is not None:
        return "decode"
    return "prefill" if worker is not None and worker.config.role == "prefill" else "whole"


def note_prefill(client: Client, running: RunningAtWorker, usage: WorkerUsage, now_s: float) -> None:
    """Note that the KV of a request's prompt is at the worker where it ran, which has told these counts."""
    client.tried.discard(running.worker)
    client.num_attempts -= 1
    seconds = now_s - running.sent_s
    client.prefilled = Prefilled(running.worker, running.held_tokens, usage.num_cached, seconds)


def forget_prefill(client: Client) -> None:
    """Forget the KV of a request's prompt, which is to be computed again."""
    if (prefilled := client.prefilled) is not None:
        client.prefilled = None
        client.prefilled_s += prefilled.seconds


def without_transfer(client: Client, usage: WorkerUsage) -> WorkerUsage:
    """Return the counts of a request's answer, with the tokens of its prompt that were cached before it was
    split: the second worker counts those that it was given.
    """
    prefilled = client.prefilled
    return usage if prefilled is None else replace(usage, num_cached=prefilled.num_cached)


def _serving(workers: Sequence[Worker]) -> list[Worker]:
    return [one for one in workers if one.state == "serving"]
