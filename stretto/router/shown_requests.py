"""Shows observers the requests of a router, many in a row, after what was written has been sent."""

from __future__ import annotations

import asyncio
import logging

from stretto.http.body_readers import BodyReaders
from stretto.operate.watch import Watch
from stretto.router.exchange import RoutedExchange
from stretto.router.messages import RoutedRequest
from stretto.router.prompt_watch import PromptWatch

_log = logging.getLogger(__name__)


class ShownRequests:
    """The requests that observers have yet to see."""

    def __init__(self, watch: Watch, readers: BodyReaders) -> None:
        self._watch = watch
        self._prompts = PromptWatch(watch, readers)
        self._loop = asyncio.get_running_loop()
        self._unseen: list[tuple[RoutedExchange, RoutedRequest | None]] = []

    def later(self, exchange: RoutedExchange, arrived: RoutedRequest | None) -> None:
        """Show observers a request that has `arrived`, or that has ended, in the next turn of the event
        loop.
        """
        if not self._unseen:
            self._loop.call_soon(self.catch_up)
        self._unseen.append((exchange, arrived))

    def catch_up(self) -> None:
        """Show observers the requests that they have not seen. Of one that has ended nothing is kept."""
        unseen, self._unseen = self._unseen, []
        observers = self._watch.observers
        for exchange, routed in unseen:
            trace = exchange.trace
            try:
                if routed is None:
                    assert trace.ended_s is not None, "it has ended"
                    observers.on_request_ended(trace, trace.ended_s)
                    exchange.let_go()
                    continue
                assert trace.placed_s is not None, "it was brought to the state machine"
                observers.on_request_arrived(trace, trace.placed_s)
                if routed.key is not None and (trace.tries or not exchange.has_ended):
                    self._prompts.arrived(trace, routed, exchange.outgoing)
            except Exception:
                _log.exception("a request could not be shown to those who watch")
