"""The account of programs at one engine: the work that each has asked for, and the service that tenants got.

A program is a query, or several that name the same program, such as the turns of an agent. The scheduler of
the engine says what arrives, is sent, ends and is given up; orders read. All queues of an engine share one
account, so that a program counts as one wherever its requests wait.

Work is counted as expected when it arrives, and as what really ran when it ends: prompt tokens that were not
cached, and tokens that were generated. What arrives at one instant is one *group*. When a program has ended,
each of its groups is a sample of what programs of this kind ask for later (`costs/learned_work.py`). Programs
of several queries need not say that they have ended. One that is silent for much longer than programs of its
kind have been before they went on counts as ended.

The requests of a session are no programs: sessions live long, for several callers.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from types import MappingProxyType

from stretto.costs.learned_work import LearnedWork, Source
from stretto.costs.work_left import WorkLeft
from stretto.model.errors import ConfigError
from stretto.model.tasks import Usage
from stretto.sched.queries.request import ProgramKey, StepRequest

NO_WEIGHTS: Mapping[str, float] = MappingProxyType({})
"""Weights by which all tenants have equal shares."""

_MAX_PROGRAMS = 8192
_MAX_GROUPS = 256
_MAX_TENANTS = 4096
_MAX_KINDS = 1024
_LATER = "later"
"""Mark of the sources of prompts that come when their program has had others, and so may begin like those."""
_SILENCE_S = 15.0
"""Least seconds of silence after which a program of several queries may count as ended."""
_SILENCES = 3.0
"""Multiple of the longest recent silence of a program of the kind that went on."""
_FORGETS = 0.998
"""Factor by which the longest silence is forgotten with each program that goes on."""


@dataclass(slots=True)
class _Group:
    """Requests of one instant: their source, the work asked for up to and with them, what they took, and when
    the first of them was sent.
    """

    source: Source
    done_s: float
    at_s: float
    took_s: float = 0.0
    sent_s: float | None = None


@dataclass(slots=True)
class _Open:
    """Items of one request that have arrived and not ended, and the expected seconds of each.

    Attributes:
        fresh_source: source by which it is learned how much of a prompt is not cached.
        num_known: units of work of each item, for an LLM the tokens of its prompt.
        fresh: share of the prompt that was expected not to be.
    """

    group: _Group
    fresh_source: Source
    num_known: float
    fresh: float
    item_s: float
    num_left: int
    hi: int


@dataclass(slots=True, eq=False)
class Program:
    """What one program has asked of an engine.

    Attributes:
        is_open_ended: whether it has a name, under which further queries may come.
        is_over: whether its end was said while some of its queries had not ended.
        queries: queries that have not ended, of a program of several.
        num_queries: number of its queries so far, if it may be several.
        goes_on: whether it is likely to go on after its present queries.
        asked_s: seconds of all work that it has asked for so far: what really ran, and what is expected of
            the rest.
        done_s: `asked_s` at its last arrival.
        source: source of its last arrival, until `left` is looked up.
        left: what programs like it asked for after such an arrival; None if nothing is known of its kind.
        open: requests that have not ended, by query and node, and by their first item.
    """

    name: ProgramKey
    kind: str
    is_open_ended: bool
    is_over: bool = False
    asked_s: float = 0.0
    done_s: float = 0.0
    source: Source | None = None
    left: WorkLeft | None = None
    heard_s: float = 0.0
    groups: list[_Group] = field(default_factory=list)
    open: dict[tuple[str, int], dict[int, _Open]] = field(default_factory=dict)
    queries: set[str] = field(default_factory=set)
    num_queries: int = 0
    goes_on: bool = False


class ProgramAccount:
    """The account of the programs and tenants at one engine.

    Args:
        unit_s: predicted seconds of a unit of work, for an LLM of a token of a prompt.
        output_s: predicted seconds of a generated token.
        weights: shares of tenants relative to each other; 1 where none is given.
        learned: what programs of earlier runs have asked for; None for nothing.

    Attributes:
        learned: what earlier programs have asked for, also in this run.
        virtual_s: virtual time of the tenant that was served last, before that.
    """

    def __init__(
        self,
        unit_s: float = 0.0,
        output_s: float = 0.0,
        weights: Mapping[str, float] = NO_WEIGHTS,
        learned: LearnedWork | None = None,
    ) -> None:
        self.learned = LearnedWork() if learned is None else learned
        self.virtual_s = 0.0
        self._unit_s = unit_s
        self._output_s = output_s
        for tenant, weight in weights.items():
            if not 0 < weight < math.inf:
                raise ConfigError(
                    f"the weight of tenant {tenant!r} is {weight!r}; it must be positive and finite"
                )
        self._weights = weights
        self._programs: OrderedDict[ProgramKey, Program] = OrderedDict()
        self._silent: dict[str, dict[ProgramKey, None]] = {}  # by kind, the longest silence first
        self._of_query: dict[str, ProgramKey] = {}  # of programs of several queries
        self._served: dict[str, float] = {}
        self._forgotten_s = 0.0  # virtual time at least of tenants that are not in `_served`
        self._longest_s: dict[str, float] = {}  # by kind

    # --- what the scheduler says

    def arrived(self, request: StepRequest, num_output: int, now_s: float) -> float:
        """Count a request that has become ready, of which each item is expected to generate `num_output`
        tokens. Return the share of its prompts that is expected not to be cached.
        """
        record = request.record
        if record.arrival_s == math.inf:
            return 1.0
        name = request.program_key
        program = self._programs.get(name)
        if program is None:
            program = self._programs[name] = Program(name, record.kind, bool(record.program), heard_s=now_s)
            if len(self._programs) > _MAX_PROGRAMS:
                self._forget_oldest()
        else:
            self._programs.move_to_end(name)
            if not program.open and record.program:
                self._wait_no_more(program)
                self._note_silence(program.kind, now_s - program.heard_s)
        if record.kind in self._silent:
            self._end_silent(record.kind, now_s)
        if record.program and request.query not in self._of_query:
            self._of_query[request.query] = name
            program.queries.add(request.query)
            program.num_queries += 1
            program.goes_on = program.num_queries > 1 or self.learned.goes_on(record.kind)
        key = request.query, request.node.id
        of_node = program.open.get(key)
        if of_node is None:
            of_node = program.open[key] = {}
        elif (part := of_node.get(request.lo)) is not None:  # it is tried again
            return part.fresh
        num_items = request.hi - request.lo
        num_known = (num_items if request.units is None else sum(request.units)) / num_items
        group = program.groups[-1] if program.groups else None
        is_first = group is None or (group.at_s == now_s and len(program.groups) == 1)
        fresh_source = request.source if is_first else (*request.source, _LATER)
        fresh = self.learned.fresh(fresh_source, num_known) / num_known if num_known else 1.0
        seconds = (self._unit_s * fresh * num_known + self._output_s * num_output) * num_items
        source = (*request.source, str(request.node.depth))
        program.asked_s += seconds
        program.done_s, program.heard_s = program.asked_s, now_s
        program.source = source
        if group is None or (group.at_s != now_s and len(program.groups) < _MAX_GROUPS):
            group = _Group(source, program.asked_s, now_s)
            program.groups.append(group)
        elif group.at_s == now_s:
            group.source, group.done_s = source, program.asked_s
        of_node[request.lo] = _Open(
            group, fresh_source, num_known, fresh, seconds / num_items, num_items, request.hi
        )
        return fresh

    def sent(self, request: StepRequest, now_s: float, num_items: int = 1) -> None:
        """Charge the tenant of a request for items that go to an instance now."""
        found = self._find(request)
        if found is None:
            return
        part = found[1]
        if part.group.sent_s is None:
            part.group.sent_s = now_s
        self.virtual_s = self._charge(request.record.tenant, part.item_s * num_items)

    def ended(
        self, request: StepRequest, now_s: float, num_items: int = 1, took_s: float | None = None
    ) -> None:
        """Count items that have ended, after `took_s` seconds of work; None stands for what was expected."""
        found = self._find(request)
        if found is not None:
            self._end(found, request, now_s, num_items, took_s)

    def answered(self, request: StepRequest, usage: Usage, num_output: int, now_s: float) -> None:
        """Count the end of one item at an LLM that has generated `num_output` tokens. Prompt tokens that were
        not cached are taken from `usage`, where it reports any.
        """
        found = self._find(request)
        if found is None:
            return
        part = found[1]
        num_known = part.num_known
        num_fresh = part.fresh * num_known
        if usage.num_prompt_tokens:
            num_fresh = max(0, usage.num_prompt_tokens - usage.num_cached_tokens)
            if num_known:
                self.learned.observe_fresh(part.fresh_source, num_known, num_fresh)
        self._end(found, request, now_s, 1, self._unit_s * num_fresh + self._output_s * num_output)

    def withdrawn(self, query: str, node: int, items: Set[int] | None = None) -> None:
        """Count a node of a query, or some of its items, as not asked for: they are no longer wanted, or have
        failed.
        """
        program = self._programs.get(self._of_query.get(query, query))
        if program is None:
            return
        for lo, part in list(program.open.get((query, node), {}).items()):
            num_gone = part.num_left
            if items is not None:
                num_gone = min(num_gone, sum(lo <= item < part.hi for item in items))
            program.asked_s -= part.item_s * num_gone
            part.num_left -= num_gone
            if part.num_left == 0:
                self._close(program, (query, node), lo)

    def query_ended(self, query: str) -> None:
        """Note that a query has ended. If it was a program by itself, the account learns from it now, unless
        it was cut short.
        """
        program = self._programs.get(self._of_query.pop(query, query))
        if program is None:
            return
        cut_short = [key for key in program.open if key[0] == query]
        if program.name == query:
            if cut_short:
                del self._programs[query]
            else:
                self._conclude(query)
            return
        for key in cut_short:
            program.asked_s -= sum(part.item_s * part.num_left for part in program.open.pop(key).values())
        program.queries.discard(query)
        if cut_short and not program.open:
            self._wait_for(program)
        if program.is_over and not program.queries:
            self._conclude(program.name)

    def program_ended(self, program: str, tenant: str = "") -> None:
        """Note that a tenant's program of several queries has ended, where somebody says so. The account
        learns from it when its last query has ended, so that its tenant is charged for those that still run.
        """
        found = self._programs.get((tenant, program))
        if found is not None:
            found.is_over = True
            if not found.queries:
                self._conclude(found.name)

    # --- what orders read

    def find(self, name: ProgramKey) -> Program | None:
        """Return a program by its key; None if nothing is known of it. For tests."""
        return self._programs.get(name)

    def index_s(self, name: ProgramKey, waiting_s: float) -> float:
        """Return the expected work per program that ends, for a program of which `waiting_s` seconds wait; as
        much as waits if nothing is known of the program, as of the jobs of a session.

        Where nothing is known of its kind, it is the work that it has asked for: the least attained service
        goes first. It is at least that for a program of several queries, which may go on after each of them,
        but not where programs of its kind have all ended with their first query lately. Else the turns of
        long agents overtake chats, and more agents are begun whose prefixes are evicted.
        """
        program = self._programs.get(name)
        if program is None:
            return waiting_s
        if program.source is not None:
            program.left, program.source = self.learned.find(program.source, program.done_s), None
        if program.left is None:
            return max(program.done_s, waiting_s)
        return program.left.index_s(waiting_s, program.done_s if program.goes_on else 0.0)

    def start_by_s(self, request: StepRequest) -> float:
        """Return the time by which a request must start so that its program can keep its deadline, if it goes
        on as programs of its kind have done; infinite without a deadline.
        """
        deadline_s = request.record.deadline_s
        if deadline_s is None:
            return math.inf
        return deadline_s - (self.learned.way_s((*request.source, str(request.node.depth))) or 0.0)

    def served_s(self, tenant: str) -> float:
        """Return the virtual time of a tenant: seconds of service over its weight."""
        return self._served.get(tenant, self._forgotten_s)

    def lift(self, tenant: str, floor_s: float) -> None:
        """Let a tenant that had nothing waiting begin at `floor_s` at least: idle time gives no credit."""
        if self.served_s(tenant) < floor_s:
            self._served[tenant] = floor_s

    def check_invariants(self) -> None:
        """Check that sums of open work agree and that all tables keep within their limits. For tests."""
        assert len(self._programs) <= _MAX_PROGRAMS
        assert len(self._served) <= _MAX_TENANTS
        silent = {name for of_kind in self._silent.values() for name in of_kind}
        assert silent <= self._programs.keys()
        assert all(self._silent.values())
        assert len(self._longest_s) <= _MAX_KINDS
        for name, program in self._programs.items():
            assert program.name == name
            assert len(program.groups) <= _MAX_GROUPS
            assert (name in silent) == (program.is_open_ended and not program.open)
            parts = [part for of_node in program.open.values() for part in of_node.values()]
            assert all(part.num_left > 0 for part in parts)
            open_s = sum(part.item_s * part.num_left for part in parts)
            took_s = sum(group.took_s for group in program.groups)
            assert math.isclose(program.asked_s, open_s + took_s, rel_tol=1e-6, abs_tol=1e-6)
        self.learned.check_invariants()

    # --- inside

    def _find(self, request: StepRequest) -> tuple[Program, _Open] | None:
        """Return the program of a request, and what is open of the request."""
        program = self._programs.get(request.program_key)
        of_node = None if program is None else program.open.get((request.query, request.node.id))
        part = None if of_node is None else of_node.get(request.lo)
        return None if program is None or part is None else (program, part)

    def _end(
        self,
        found: tuple[Program, _Open],
        request: StepRequest,
        now_s: float,
        num_items: int,
        took_s: float | None,
    ) -> None:
        program, part = found
        expected_s = part.item_s * num_items
        if took_s is None:
            took_s = expected_s
        else:
            program.asked_s += took_s - expected_s
            self._charge(request.record.tenant, took_s - expected_s)
        part.group.took_s += took_s
        program.heard_s = now_s
        part.num_left -= num_items
        if part.num_left <= 0:
            self._close(program, (request.query, request.node.id), request.lo)

    def _charge(self, tenant: str, seconds: float) -> float:
        """Add service to that of a tenant; return its virtual time before that."""
        served = self._served
        before_s = served.get(tenant, self._forgotten_s)
        served[tenant] = before_s + (seconds / self._weights.get(tenant, 1.0) if self._weights else seconds)
        if len(served) > _MAX_TENANTS:
            least = sorted(served, key=served.__getitem__)[: len(served) - _MAX_TENANTS // 2]
            self._forgotten_s = served[least[-1]]
            for one in least:
                del served[one]
        return before_s

    def _conclude(self, name: ProgramKey) -> None:
        """Learn from a program that has ended, and forget it."""
        program = self._programs.pop(name)
        self._wait_no_more(program)
        if program.is_open_ended and program.groups:
            self.learned.count_queries(program.kind, program.num_queries)
        later_s = waited_s = 0.0
        for group in reversed(program.groups):
            way_s = None
            if group.sent_s is not None:
                way_s = max(0.0, program.heard_s - group.sent_s - waited_s)
                waited_s += group.sent_s - group.at_s
            self.learned.observe(
                group.source,
                group.done_s,
                later_s,
                way_s,
                asked_s=group.took_s,
                is_open_ended=program.goes_on,
            )
            later_s += group.took_s

    def _forget_oldest(self) -> None:
        """Forget the program heard of longest ago. Nothing is learned from one that still has work."""
        name = next(iter(self._programs))
        if self._programs[name].open:
            del self._programs[name]
        else:
            self._conclude(name)

    def _wait_for(self, program: Program) -> None:
        """Note that a program of several queries is silent from now on."""
        self._silent.setdefault(program.kind, {})[program.name] = None

    def _wait_no_more(self, program: Program) -> None:
        """Note that a program has gone on or has ended, if it was silent."""
        of_kind = self._silent.get(program.kind)
        if of_kind is not None:
            of_kind.pop(program.name, None)
            if not of_kind:
                del self._silent[program.kind]

    def _note_silence(self, kind: str, seconds: float) -> None:
        longest_s = self._longest_s.pop(kind, 0.0)
        self._longest_s[kind] = max(seconds, longest_s * _FORGETS)
        if len(self._longest_s) > _MAX_KINDS:
            del self._longest_s[next(iter(self._longest_s))]

    def _end_silent(self, kind: str, now_s: float) -> None:
        """Conclude the program of a kind that has been silent for longest, if that is too long."""
        name = next(iter(self._silent[kind]))
        longest_s = self._longest_s.get(kind, 0.0)
        if now_s - self._programs[name].heard_s > max(_SILENCE_S, _SILENCES * longest_s):
            self._conclude(name)

    def _close(self, program: Program, key: tuple[str, int], lo: int) -> None:
        """Forget a request that has ended."""
        of_node = program.open[key]
        del of_node[lo]
        if not of_node:
            del program.open[key]
            if program.is_open_ended and not program.open:
                self._wait_for(program)
