"""Comparison of the tokens of chats as the router and their worker count them."""

from __future__ import annotations

import logging

from stretto.router.messages import WorkerUsage
from stretto.router.workers import Worker

_MOST_MISCOUNTED = 3
_log = logging.getLogger(__name__)


def compare_counts(worker: Worker, num_tokens: int, usage: WorkerUsage) -> None:
    """Note how many tokens a worker has counted of a chat that the router has counted too. After three chats
    with other counts, chats are not looked up any more in what the worker reports.
    """
    if usage.num_prompt is None or usage.num_prompt == num_tokens or not worker.shares_template:
        return
    worker.num_miscounted += 1
    if worker.num_miscounted == _MOST_MISCOUNTED:
        worker.shares_template = False
        _log.warning(
            "worker %s makes other prompts of chats than the router (the last one has %d tokens, not %d): no "
            "chats are looked up any more in what it reports",
            worker.config.url,
            usage.num_prompt,
            num_tokens,
        )
