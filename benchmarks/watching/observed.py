"""Our router, and what looks at it: `python -m benchmarks.watching.observed HOW PORT URL…`.

blind      nothing sees its requests: no metrics, no spans, no page
plain      as it comes: metrics, times of programs, and recent traffic, at which nobody looks
watched    the same with spans for a collector, and with somebody who reads its metrics and its live page
"""

from __future__ import annotations

import sys
from contextlib import ExitStack

from benchmarks.watching.onlooker import onlooker
from stretto.operate.otel import SpanSender
from stretto.operate.watch import Watch
from stretto.router.config import RouterConfig, WorkerConfig
from stretto.router.serve import run_router
from stretto.sched.observer import Observers


def main() -> None:
    """Run the router until interrupted."""
    how, port, *urls = sys.argv[1:]
    config = RouterConfig(worker=tuple(WorkerConfig(url=url) for url in urls), port=int(port))
    with ExitStack() as stack:
        watch = Watch(SpanSender(stack.enter_context(onlooker(int(port)))) if how == "watched" else None)
        if how == "blind":
            watch.observers = Observers([])
        run_router(config, None, lambda _: None, watch)


if __name__ == "__main__":
    main()
