"""Our router, and what looks at it: `python -m benchmarks.watching.observed HOW PORT URL…`.

blind      nothing sees its requests: no metrics, no spans, no page
plain      as it comes: metrics, times of programs, and recent traffic, at which nobody looks
spans      nothing but spans for a collector
page       as it comes, with somebody who reads its metrics and its live page
watched    all of that
"""

from __future__ import annotations

import sys
from contextlib import ExitStack

from benchmarks.watching.onlooker import onlooker
from stretto.operate.otel import SpanSender
from stretto.operate.watch import DeferredObservers, Watch
from stretto.router.config import RouterConfig
from stretto.router.serve import run_router
from stretto.router.worker_config import WorkerConfig
from stretto.sched.observer import Observers


def main() -> None:
    """Run the router until interrupted."""
    how, port, *urls = sys.argv[1:]
    config = RouterConfig(worker=tuple(WorkerConfig(url=url) for url in urls), port=int(port))
    with ExitStack() as stack:
        spans = None
        if how in ("spans", "page", "watched"):
            collector = stack.enter_context(onlooker(int(port), looks=how != "spans"))
            spans = None if how == "page" else SpanSender(collector)
        watch = Watch(spans)
        if how in ("blind", "spans"):
            watch.deferred = DeferredObservers([])
            watch.observers = Observers([] if spans is None else [spans])
        run_router(config, None, lambda _: None, watch)


if __name__ == "__main__":
    main()
