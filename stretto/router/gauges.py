"""What a router and its workers are doing now, as metrics."""

from __future__ import annotations

from itertools import islice
from time import monotonic

from stretto.operate.engine_gauges import STATES
from stretto.operate.live import FleetView, LiveWait, WorkerPicture
from stretto.router.front import Front
from stretto.router.open_requests import TURN
from stretto.wire import metric_table as table
from stretto.wire.metrics import Published, Sample, one_value_each

_MAX_MODELS = 3
_MAX_WAITS = 1000


def fleet_view(front: Front) -> FleetView:
    """Return a router's workers, and who waits, as the live page shows them."""
    view, now_s = front.router_state.view, monotonic()
    workers = []
    for worker in view.workers():
        claimed, kv_tokens = view.claimed(worker.id, now_s)
        workers.append(
            WorkerPicture(
                worker.config.url,
                worker.state,
                view.num_running(worker.id),
                worker.num_slots,
                claimed,
                kv_tokens,
                tuple(islice(worker.models, _MAX_MODELS)),
                worker.reason if worker.state in ("suspect", "starting") else "",
            )
        )
    waits = [
        LiveWait(exchange.trace.tenant_program, one.since_s, one.why, is_held=one.why != TURN)
        for one in view.waiting(_MAX_WAITS)
        if (exchange := front.exchanges.get(one.ticket)) is not None
    ]
    return FleetView(workers, waits, view.num_waiting, view.num_held)


def settings_json(front: Front) -> dict[str, object]:
    """Return the settings of a router as far as they decide how it serves, and what was learned of its
    workers, for a simulation: how many requests each runs at once, and the size of its KV memory.
    """
    config = front.config
    workers = front.router_state.view.workers()
    return {
        "placement": config.placement,
        "order": config.order,
        "holds_programs": config.holds_programs,
        "workers": [
            {
                "url": one.config.url,
                "num_slots": one.num_slots,
                "kv_tokens": one.kv_tokens,
                "role": one.config.role,
            }
            for one in workers
        ],
    }


def gauges(front: Front, engine: str = "") -> list[Published]:
    """Return the present loads of a router and of its workers, and how many other routers it hears if it
    talks to any.

    Args:
        engine: name of the engine that the workers are, at a service; "" at a router.
    """
    view, peers, now_s = front.router_state.view, front.router_state.peers, monotonic()
    workers = view.workers()
    names = [(worker, worker.config.url) for worker in workers]
    claims = [(name, *view.claimed(worker.id, now_s)) for worker, name in names]
    return [
        (
            table.STATE,
            [
                table.STATE.sample(float(worker.state == state), name, state)
                for worker, name in names
                for state in STATES
            ],
        ),
        (table.RUNNING, [table.RUNNING.sample(view.num_running(w.id), name) for w, name in names]),
        (table.WANTS_KEY, [table.WANTS_KEY.sample(float(w.wants_key), name) for w, name in names]),
        (table.KV_CLAIMED, [table.KV_CLAIMED.sample(claimed, name) for name, claimed, _ in claims]),
        (
            table.KV_TOKENS,
            [table.KV_TOKENS.sample(size, name) for name, _, size in claims if size is not None],
        ),
        (
            table.WAITING,
            _waiting(engine, view.num_waiting - view.num_held, view.num_held),
        ),
        *([] if peers is None else one_value_each({table.PEERS_HEARD: len(peers.origins)})),
        *one_value_each({table.OPEN: view.num_clients, table.HELD_BYTES: front.budget.num_held}),
    ]


def _waiting(engine: str, num_turn: int, num_held: int) -> list[Sample]:
    return [table.WAITING.sample(num_turn, engine, "turn"), table.WAITING.sample(num_held, engine, "room")]
