"""A Ray cluster: joining it, and workers that it places. Only this file and `ray_worker` import Ray.

Ray chooses nodes, starts workers there and says when they die. It is slow to notice a dead node (20 s) and
may place workers on one until then. So a node where a worker was lost is avoided for a while, if another
one could hold the replica.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

from stretto.model.errors import ConfigError, EngineUnavailable
from stretto.model.extras import imports_of
from stretto.model.foreign import typed
from stretto.model.tasks import Task
from stretto.runtime.instances.ray_demand import (
    RayDemand,
    RayNode,
    check_feasible,
    parse_head_address,
    to_avoid,
)
from stretto.runtime.instances.ray_values import RayAnswer
from stretto.runtime.instances.ray_worker import RayActor
from stretto.sched.messages import Event

with imports_of("ray", "runs_in 'ray'"):
    import ray

_PROBE_S = 3.0
_JOIN_S = 30.0
_AVOID_S = 60.0
_HTTP2_OPENING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
_HTTP2_SETTINGS = 4
_LOOPBACK = ("localhost", "127.0.0.1")

_joining = threading.Lock()
_num_joined = 0
_is_joined_by_us = False


class RayCluster:
    """A Ray cluster that this process belongs to while it is open. Ray allows one for each process.

    Args:
        address: host and port of its head.

    Raises:
        ConfigError: the address has another form.
    """

    def __init__(self, address: str) -> None:
        parse_head_address(address)
        self._address = address
        self._failed: dict[str, float] = {}
        self._feasible: set[RayDemand] = set()

    async def join(self) -> None:
        """Join the Ray cluster, so that workers can be started on its nodes.

        Raises:
            ConfigError: nothing answers at the address within seconds, or it is not a Ray cluster that this
                process can join.
        """
        await asyncio.to_thread(_join, self._address)

    async def leave(self) -> None:
        """Leave the Ray cluster, unless another runtime of this process still uses it."""
        await asyncio.to_thread(_leave)

    def place(self, kind: type[RayActor], demand: RayDemand) -> RayWorker:
        """Start a worker on a node that Ray chooses; the worker waits until there is room for it.

        Raises:
            ConfigError: no node of the cluster can hold it, and none could at an earlier call.
        """
        nodes = [
            RayNode(node["NodeID"], node["NodeManagerAddress"], node["Resources"])
            for node in ray.nodes()
            if node["Alive"]
        ]
        if demand not in self._feasible:
            check_feasible(demand, nodes)
            self._feasible.add(demand)
        options: dict[str, Any] = {
            "num_cpus": demand.num_cpus,
            "num_gpus": demand.num_gpus,
            "resources": {k: v for k, v in demand.resources.items() if k not in ("CPU", "GPU")},
            "scheduling_strategy": "SPREAD",
            "max_restarts": 0,
        }
        now_s = time.monotonic()
        failed = [node for node, since_s in self._failed.items() if since_s + _AVOID_S > now_s]
        if avoided := to_avoid(demand, nodes, failed):
            options["label_selector"] = {"ray.io/node-id": f"!in({','.join(avoided)})"}
        return RayWorker(self, ray.remote(kind).options(**options).remote())

    def avoid(self, node: str) -> None:
        """Place no workers on a node for a while, if another can hold them, because a worker was lost
        there.
        """
        self._failed[node] = time.monotonic()


class RayWorker:
    """A handle on a worker (a Ray actor) that runs on some node of the cluster."""

    def __init__(self, cluster: RayCluster, actor: Any) -> None:
        self._cluster = cluster
        self._actor = actor
        self._node = ""

    async def placed(self) -> str:
        """Wait until the worker runs; return the id of the cluster's node where Ray has placed it."""
        self._node = str(await self.call("node"))
        return self._node

    async def call(self, method: str, *arguments: object) -> Any:
        """Call a method of the worker and return its result.

        Raises:
            EngineUnavailable: the worker or its node is gone, or cannot be reached.
            StrettoError: the method raised it, or another exception that is its cause.
            TypeError: an argument does not pickle.
        """
        return await self._answer(getattr(self._actor, method).remote(*arguments))

    async def run_batch(self, batch: int, tasks: Sequence[Task]) -> Event:
        """Run one batch of tasks on the worker; return the event that reports its results or its failure.

        Large values stay on the worker's node. This node's store gets a copy, which outlives the worker's
        node; no process of ours reads it. The arguments and errors are those of `call`.
        """
        reply, values = self._actor.run.options(num_returns=2).remote(batch, tasks)
        answer: RayAnswer = await self._answer(reply)
        if answer.stored is not None:
            await self._answer(values)
            answer.stored.object = values
        return answer.event

    async def _answer(self, reply: Any) -> Any:
        try:
            return await asyncio.wrap_future(reply.future())
        except ray.exceptions.RayTaskError as error:
            raise typed(error.cause) from error
        except ray.exceptions.RayError as error:
            self.blame()
            raise EngineUnavailable(f"its Ray worker is lost: {error}") from error

    def blame(self) -> None:
        """Make the cluster avoid the worker's node for a while, because the worker was lost."""
        if self._node:
            self._cluster.avoid(self._node)

    async def end(self, timeout_s: float) -> None:
        """Ask the worker to close, and kill it when it has closed or when `timeout_s` seconds are over."""
        if timeout_s > 0:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(self.call("close"), timeout_s)
        with contextlib.suppress(Exception):  # the cluster has gone
            await asyncio.to_thread(ray.kill, self._actor)


def pickled(value: object) -> bytes:
    """Return a value in pickled form.

    Functions and classes of the main module are pickled by their code, because a worker has another main
    module.

    Raises:
        ConfigError: it does not pickle.
    """
    try:
        return bytes(ray.cloudpickle.dumps(value))
    except Exception as error:  # pickling raises whatever an object's own code raises
        raise ConfigError(f"an engine cannot be sent to a Ray worker: {error}") from error


def _join(address: str) -> None:
    global _num_joined, _is_joined_by_us
    with _joining:
        if ray.is_initialized():
            _check_same(address)
        else:
            _check_answers(address)
            _init(address)
            _is_joined_by_us = True
        _num_joined += 1


def _leave() -> None:
    global _num_joined, _is_joined_by_us
    with _joining:
        _num_joined -= 1
        if _num_joined == 0 and _is_joined_by_us:
            _is_joined_by_us = False
            ray.shutdown()


def _check_answers(address: str) -> None:
    """Check that a server of the kind that Ray uses listens. Ray itself tries for a minute, then ends us."""
    remedy = "start the cluster (ray start --head), or give the address that it prints"
    try:
        with socket.create_connection(parse_head_address(address), _PROBE_S) as head:
            head.settimeout(_PROBE_S)
            head.sendall(_HTTP2_OPENING)
            frame = head.recv(9, socket.MSG_WAITALL)
    except OSError as error:
        raise ConfigError(f"the Ray address {address!r} does not answer ({error}); {remedy}") from error
    if len(frame) < 9 or frame[3] != _HTTP2_SETTINGS:
        raise ConfigError(f"what answers at the Ray address {address!r} is not Ray; {remedy}")


def _init(address: str) -> None:
    """Join, on a thread of its own that is left behind if Ray never returns."""
    failures: list[BaseException | None] = []

    def join() -> None:
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except BaseException as error:
            failures.append(error)
        else:
            failures.append(None)

    thread = threading.Thread(target=join, daemon=True)
    thread.start()
    thread.join(_JOIN_S)
    failure = failures[0] if failures else TimeoutError(f"no answer in {_JOIN_S:g} s")
    if failure is not None:
        raise ConfigError(
            f"the Ray cluster at {address!r} cannot be joined: {failure}; this machine must be one of its "
            "nodes (ray start --address), with the same versions of Ray and Python"
        ) from failure


def _check_same(address: str) -> None:
    host, port = parse_head_address(address)
    joined = str(ray.get_runtime_context().gcs_address)
    there, its_port = parse_head_address(joined)
    if port != its_port or host not in (there, *_LOOPBACK):
        raise ConfigError(
            f"this process has joined the Ray cluster at {joined!r}, so it cannot join that at {address!r}; "
            "give the same address, or run another process"
        )
