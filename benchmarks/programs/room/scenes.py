"""What is asked of the rule that says who has room, as loads on servers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from benchmarks.programs.room.load import Load
from benchmarks.programs.room.routed import RoutedServers
from benchmarks.programs.room.servers import Servers

NOTHING, OURS, ENDLESS = "nothing", "ours", "8 x memory"
CAPS = (18, 20, 22, 24)
KNEE = 24
_SESSIONS = (8, 16, 24, 32, 48, 96)
_MANY_SERVERS = 4
_BUSY = 48


@dataclass(frozen=True, slots=True)
class Scene:
    """One run of a table, as often as there are seeds.

    Attributes:
        table: what is asked.
        row: what comes.
        arm: what decides who has room.
    """

    table: str
    row: str
    arm: str
    load: Load
    servers: Servers


def _servers(arm: str, number: int = 1) -> Servers:
    return Servers(number, memory=8.0 if arm == ENDLESS else 1.0, holds=arm == OURS)


def closed_loop() -> Iterator[Scene]:
    """Yield so many sessions at once, on one server and on four."""
    for number in _SESSIONS:
        for arm in (NOTHING, OURS, ENDLESS):
            yield Scene("closed loop", f"{number}", arm, Load(num_clients=number), _servers(arm))
        load = Load(num_clients=number, cap=20)
        yield Scene("closed loop", f"{number}", "cap 20", load, _servers("cap"))
    for number in (16, 32, 48):
        load = Load(num_clients=_MANY_SERVERS * number, warm_s=40.0, end_s=130.0)
        for arm in (NOTHING, OURS, ENDLESS):
            row = f"{_MANY_SERVERS} servers, {number} each"
            yield Scene("closed loop", row, arm, load, _servers(arm, _MANY_SERVERS))
    for number in (16, 48):
        for arm in (NOTHING, OURS, ENDLESS):
            load = Load(num_clients=number, shared=0.7)
            yield Scene("closed loop", f"{number}, 70 % of openings shared", arm, load, _servers(arm))


def open_loop(capacity_per_s: float) -> Iterator[Scene]:
    """Yield sessions that arrive at 1.0 and 1.2 of the capacity, all of which end."""
    for share in (1.0, 1.2):
        load = Load(per_s=share * capacity_per_s, num_sessions=200)
        row = f"{share:g} of capacity"
        yield Scene("open loop", row, OURS, load, _servers(OURS))
        yield Scene("open loop", row, ENDLESS, load, _servers(ENDLESS))
        for cap in CAPS:
            yield Scene("open loop", row, f"cap {cap}", replace(load, cap=cap), _servers("cap"))


def door() -> Iterator[Scene]:
    """Yield agents, and chats beside them, through a router that is told of no end."""
    by_arrival = RoutedServers(order="per_invocation")
    arms = {
        NOTHING: by_arrival,
        OURS: RoutedServers(holds=True),
        ENDLESS: replace(by_arrival, memory=8.0),
    }
    for number in _SESSIONS:
        for arm, servers in arms.items():
            load = Load(num_clients=number, says_ends=False)
            yield Scene("door", f"{number}", arm, load, servers)
    for arm, servers in arms.items():
        load = Load(num_clients=_MANY_SERVERS * _BUSY, says_ends=False, warm_s=40.0, end_s=130.0)
        many = replace(servers, number=_MANY_SERVERS)
        yield Scene("door", f"{_MANY_SERVERS} servers, {_BUSY} each", arm, load, many)
    for number in (16, _BUSY):
        load = Load(num_clients=number, says_ends=False, chats_per_s=2.0)
        for arm, servers in arms.items():
            short = replace(servers, num_slots=servers.max_running)
            yield Scene("door", f"{number}, two chats a second beside", arm, load, short)
        ordered = RoutedServers(num_slots=by_arrival.max_running)
        yield Scene("door", f"{number}, two chats a second beside", "order alone", load, ordered)


def several_routers() -> Iterator[Scene]:
    """Yield agents through two routers before the same servers, which tell each other of them or do not."""
    one = RoutedServers(_MANY_SERVERS, holds=True)
    two = replace(one, routers=2)
    arms = {
        "one router": one,
        "two that tell nothing": two,
        "two that tell": replace(two, tells=True),
        "two that tell, a session at one": replace(two, tells=True, is_sticky=True),
    }
    for number in (_BUSY, _MANY_SERVERS * 32):
        for arm, servers in arms.items():
            load = Load(num_clients=number, says_ends=False)
            yield Scene("two routers", f"{number} at {_MANY_SERVERS} servers", arm, load, servers)


def errors() -> Iterator[Scene]:
    """Yield what may be wrong, on one server past the knee."""
    load = Load(num_clients=_BUSY)
    ours = _servers(OURS)
    yield Scene("errors", "none", OURS, load, ours)
    yield Scene("errors", "memory said 20 % too large", OURS, load, replace(ours, told=1.2))
    yield Scene("errors", "memory said 20 % too small", OURS, load, replace(ours, told=0.8))
    yield Scene("errors", "memory unknown", OURS, load, replace(ours, told=0.0))
    unsaid = replace(load, says_ends=False)
    yield Scene("errors", "ends never said", OURS, unsaid, ours)
    wrong = replace(unsaid, renamed=0.05)
    yield Scene("errors", "5 % new names, 5 % of others, ends unsaid", OURS, wrong, ours)


def others() -> Iterator[Scene]:
    """Yield other traffic: long tools, elephants, chats."""
    for arm in (NOTHING, OURS, ENDLESS):
        servers = _servers(arm)
        load = Load(num_clients=_BUSY, most_thinking_s=40.0)
        yield Scene("other traffic", "tools of up to 40 s", arm, load, servers)
        load = Load(num_clients=32, elephants=0.1)
        yield Scene("other traffic", "one in ten of half the memory", arm, load, servers)
        load = Load(num_clients=_BUSY, chats_per_s=2.0)
        yield Scene("other traffic", "two chats a second beside", arm, load, servers)
