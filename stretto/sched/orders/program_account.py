"""The account of programs at one engine: the work that each has asked for, and the service that tenants got.

A program is a query, or several that name the same program, such as the turns of an agent. The scheduler of
the engine says what arrives, is sent, ends and is given up; orders read. All queues of an engine share one
account, so that a program counts as one wherever its requests wait.

Work is counted as expected when it arrives, and as what really ran when it ends: prompt tokens that were not
cached, and tokens that were generated. What arrives at one instant is one *group* of its query. When a query
has ended, each of its groups is a sample of what queries like it ask for later (`costs/learned_work.py`).
Whether a program of several queries goes on after a query is learned too (`costs/learned_queries.py`). It
need not say that it has ended (`sched/orders/silent_programs.py`).

The requests of a session are no programs: sessions live long, for several callers.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Set

from stretto.costs.learned_work import LearnedWork
from stretto.model.tasks import Usage
from stretto.sched.orders.ageing import AgeingClock
from stretto.sched.orders.program import AskedGroup, AskedItems, AskedQuery, Program
from stretto.sched.orders.silent_programs import SilentPrograms
from stretto.sched.orders.tenants_served import NO_WEIGHTS, TenantsServed
from stretto.sched.queries.request import ProgramKey, StepRequest

_MAX_PROGRAMS = 8192
_MAX_GROUPS = 256
_LEAST_CORRECTED = 16
"""Tokens by which what caches hold of a prompt must differ from what was expected, a usual block."""
_NOTHING = AskedItems(AskedQuery(0), AskedGroup((), 0.0, 0.0), (), 0.0, 1.0, 0.0, 0, 0)
"""What is known of a request that was not counted."""
_LATER = "later"
"""Mark of the sources of prompts that come when their program has had others, and so may begin like those."""


class ProgramAccount:
    """The account of the programs and tenants at one engine.

    Args:
        unit_s: predicted seconds of a unit of work, for an LLM of a token of a prompt.
        output_s: predicted seconds of a generated token.
        weights: shares of tenants relative to each other; 1 where none is given.
        learned: what programs of earlier runs have asked for; None for nothing.

    Attributes:
        learned: what earlier programs have asked for, also in this run.
        tenants: the service that tenants got.
        ageing: how much waiting counts beside work.
        offline_ageing: the same for offline work, whose long waits say nothing about those of others.
        virtual_s: virtual time of the tenant that was served last, before that.
        on_charge: called with a tenant and the seconds of work that it has got, or fewer than was thought.
        num_held: called with a request; returns how many tokens of its prompt caches hold now, None if that
            is not known.
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
        self.on_charge: Callable[[str, float], None] | None = None
        self.num_held: Callable[[StepRequest], int | None] | None = None
        self.tenants = TenantsServed(weights)
        self.ageing, self.offline_ageing = AgeingClock(), AgeingClock()
        self._unit_s = unit_s
        self._output_s = output_s
        self._programs: OrderedDict[ProgramKey, Program] = OrderedDict()
        self._num_open: Counter[tuple[str, bool]] = Counter()
        """Number of open queries, by kind and whether their programs may make several."""
        self._num_of_several = 0  # of them, those whose programs may
        self._of_query: dict[str, ProgramKey] = {}  # of programs of several queries
        self._silent = SilentPrograms()

    # --- what the scheduler says

    def arrived(self, request: StepRequest, num_output: int, now_s: float) -> float:
        """Count a request that has become ready, of which each item is expected to generate `num_output`
        tokens. Return the share of its prompts that is expected not to be cached.
        """
        record = request.record
        if record.arrival_s == math.inf:
            return 1.0
        program = self._program_of(request, now_s)
        query = program.queries.get(request.query)
        if query is None:
            query = program.queries[request.query] = self._begin(program, request.query)
            query.num_before = program.num_known
        of_node = query.open.get(request.node.id)
        if of_node is None:
            of_node = query.open[request.node.id] = {}
        elif (part := of_node.get(request.lo)) is not None:  # it is tried again
            request.asked = part  # type: ignore[misc]
            return part.fresh
        num_items = request.hi - request.lo
        groups = query.groups
        group = groups[-1] if groups else None
        fresh_source: tuple[str, ...] = request.source
        num_known = fresh = 1.0
        if request.units is not None:  # a prompt, or work of its own size
            num_known = program.num_known = sum(request.units) / num_items
            is_first = group is None or (group.at_s == now_s and len(groups) == 1)
            if not is_first or program.num_queries > 1:
                fresh_source = (*fresh_source, _LATER)
            if num_known:
                fresh = self.learned.fresh(fresh_source, num_known) / num_known
        seconds = (self._unit_s * fresh * num_known + self._output_s * num_output) * num_items
        source = query.source = request.group_source
        asked_s = query.asked_s = query.done_s = query.asked_s + seconds
        query.heard_s = now_s
        if group is None or (group.at_s != now_s and len(groups) < _MAX_GROUPS):
            group = AskedGroup(source, asked_s, now_s)
            groups.append(group)
        elif group.at_s == now_s:
            group.source, group.done_s = source, asked_s
        request.asked = of_node[request.lo] = AskedItems(  # type: ignore[misc]
            query, group, fresh_source, num_known, fresh, seconds / num_items, num_items, request.hi
        )
        return fresh

    def corrected(self, request: StepRequest) -> float | None:
        """Correct what a request of one item that waits is expected to take by what caches hold of its prompt
        now. Return the share of the prompt that they do not; None if nothing has changed or is known.

        Nothing is corrected unless programs of several queries are served beside others. Of programs that
        are alike, those whose prefix is evicted would only wait for all the others.
        """
        if self.num_held is None or request.hi > request.lo + 1 or not self.are_mixed:
            return None
        num_held = self.num_held(request)
        part: AskedItems = request.asked or _NOTHING
        if num_held is None or not part.num_left:
            return None
        fresh = max(0.0, 1.0 - num_held / part.num_known) if part.num_known else part.fresh
        if abs(fresh - part.fresh) * part.num_known < _LEAST_CORRECTED:
            return None
        change_s = self._unit_s * (fresh - part.fresh) * part.num_known
        part.fresh, part.item_s = fresh, part.item_s + change_s
        part.query.asked_s += change_s
        part.query.done_s += change_s
        return fresh

    def sent(self, request: StepRequest, now_s: float, num_items: int = 1) -> None:
        """Charge the tenant of a request for items that go to an instance now."""
        part: AskedItems = request.asked or _NOTHING
        if not part.num_left:
            return
        if part.group.sent_s is None:
            part.group.sent_s = now_s
        self.virtual_s = self._charge(request.record.tenant, part.item_s * num_items)

    def ended(
        self, request: StepRequest, now_s: float, num_items: int = 1, took_s: float | None = None
    ) -> None:
        """Count items that have ended, after `took_s` seconds of work; None stands for what was expected."""
        part: AskedItems = request.asked or _NOTHING
        if part.num_left:
            self._end(part, request, now_s, num_items, took_s)

    def answered(self, request: StepRequest, usage: Usage, num_output: int, now_s: float) -> None:
        """Count the end of one item at an LLM that has generated `num_output` tokens. Prompt tokens that were
        not cached are taken from `usage`, where it reports any.

        What prompts find in caches is not learned from one that has lost most of what its program sent last.
        It was evicted while it waited, and prices from such would let others wait until theirs are too. A
        server counts tokens of its own, so of what it had cached the share of its prompt tokens counts.
        """
        part: AskedItems = request.asked or _NOTHING
        if not part.num_left:
            return
        num_known = part.num_known
        num_fresh = part.fresh * num_known
        if usage.num_prompt_tokens:
            num_fresh = max(0, usage.num_prompt_tokens - usage.num_cached_tokens)
            num_cached = usage.num_cached_tokens * num_known / usage.num_prompt_tokens
            if num_known and 2 * num_cached >= min(part.query.num_before, num_known):
                self.learned.observe_fresh(part.fresh_source, num_known, num_fresh)
        output_s = self._output_s * num_output
        ageing = self.offline_ageing if request.record.criteria == "offline" else self.ageing
        ageing.note_error(output_s + self._unit_s * part.fresh * num_known - part.item_s)
        self._end(part, request, now_s, 1, self._unit_s * num_fresh + output_s)

    def withdrawn(self, query: str, node: int, items: Set[int] | None = None) -> None:
        """Count a node of a query, or some of its items, as not asked for: they are no longer wanted, or have
        failed.
        """
        program = self._programs.get(self._of_query.get(query, query))
        found = None if program is None else program.queries.get(query)
        if found is None:
            return
        for lo, part in list(found.open.get(node, {}).items()):
            num_gone = part.num_left
            if items is not None:
                num_gone = min(num_gone, sum(lo <= item < part.hi for item in items))
            found.asked_s -= part.item_s * num_gone
            part.num_left -= num_gone
            if part.num_left == 0:
                _close(found, node, lo)

    def query_ended(self, query: str) -> None:
        """Note that a query has ended. The account learns from it now, unless it was cut short."""
        program = self._programs.get(self._of_query.pop(query, query))
        found = None if program is None else program.queries.pop(query, None)
        if program is None or found is None:
            return
        _forget(found)
        self._close_query(program)
        program.heard_s = max(program.heard_s, found.heard_s)
        if not found.open:
            self._learn(program, found)
        if not program.is_open_ended:
            del self._programs[program.name]
            return
        self._silent.query_ended(program, found.number, program.heard_s)
        if program.is_over and not program.queries:
            self._conclude(program)

    def program_ended(self, program: str, tenant: str = "") -> None:
        """Note that a tenant's program of several queries has ended, where somebody says so. It counts as
        ended when its last query has, so that its tenant is charged for those that still run.
        """
        found = self._programs.get((tenant, program))
        if found is not None:
            found.is_over = True
            if not found.queries:
                self._conclude(found)

    def served_elsewhere(self, tenant: str, seconds: float) -> None:
        """Charge a tenant for work that it got of the same instances by another scheduler."""
        self.virtual_s = self.tenants.charge(tenant, seconds)

    def nothing_waits(self) -> None:
        """Note that all queues of the engine were emptied at once."""
        self.ageing.clear()
        self.offline_ageing.clear()

    # --- what orders read

    @property
    def are_mixed(self) -> bool:
        """Whether programs of several queries are served beside others."""
        return self._num_of_several > 0 and len(self._num_open) > 1

    def makes_one_query(self, kind: str) -> bool:
        """Return whether nearly all programs of a kind end after one query. Then not all of them need be made
        known while nothing waits.
        """
        return self.learned.queries_of(kind).are_single

    def find(self, name: ProgramKey) -> Program | None:
        """Return a program by its key; None if nothing is known of it. For tests."""
        return self._programs.get(name)

    def index_s(self, name: ProgramKey, waiting_s: float) -> float:
        """Return the expected work per program that ends, for a program of which `waiting_s` seconds wait; as
        much as waits if nothing is known of the program, as of the jobs of a session.

        Where nothing is known of its kind, its query is taken to ask for as much again as it has asked for:
        the least attained service goes first. For a program that has gone on after a query it is at least the
        work that so many queries usually take, as those that last longest are few, and little is known of
        them. What they really took says nothing of how many are to come: it may have been a prompt computed
        anew.
        """
        program = self._programs.get(name)
        if program is None or not program.queries:
            return waiting_s
        query = next(reversed(program.queries.values()))
        if query.source is not None:
            query.left, query.source = self.learned.find(query.source, query.done_s), None
        to_end_s = waiting_s if query.left is not None else max(query.done_s, waiting_s)
        index_s = self.learned.index_s(query.left, to_end_s, program.kind, program.num_queries)
        if program.num_queries < 2:
            return index_s
        return max(index_s, program.usual_s + waiting_s)

    def start_by_s(self, request: StepRequest) -> float:
        """Return the time by which a request must start so that its query can keep its deadline, if it goes
        on as queries of its kind have done; infinite without a deadline.
        """
        deadline_s = request.record.deadline_s
        if deadline_s is None:
            return math.inf
        return deadline_s - (self.learned.way_s(request.group_source) or 0.0)

    def check_invariants(self) -> None:
        """Check that sums of open work agree and that all tables keep within their limits. For tests."""
        assert len(self._programs) <= _MAX_PROGRAMS
        programs = self._programs.values()
        assert self._num_open == Counter(
            (one.kind, one.is_open_ended) for one in programs for _ in one.queries
        )
        several = (len(one.queries) for one in programs if one.is_open_ended)
        assert self._num_of_several == sum(several)
        for name, program in self._programs.items():
            assert program.name == name
            assert program.queries or program.is_open_ended
            for query in program.queries.values():
                assert len(query.groups) <= _MAX_GROUPS
                parts = [part for of_node in query.open.values() for part in of_node.values()]
                assert all(part.num_left > 0 for part in parts)
                open_s = sum(part.item_s * part.num_left for part in parts)
                took_s = sum(group.took_s for group in query.groups)
                assert math.isclose(query.asked_s, open_s + took_s, rel_tol=1e-6, abs_tol=1e-6)
        self._silent.check_invariants({one.name for one in self._programs.values() if not one.queries})
        self.tenants.check_invariants()
        self.learned.check_invariants()

    # --- inside

    def _program_of(self, request: StepRequest, now_s: float) -> Program:
        """Return the program of a request that arrives now, which may be a new one."""
        name, record = request.program_key, request.record
        program = self._programs.get(name)
        if program is None:
            program = self._programs[name] = Program(name, record.kind, bool(record.program))
            if len(self._programs) > _MAX_PROGRAMS:
                self._forget_oldest()
        else:
            self._programs.move_to_end(name)
        if program.is_open_ended:
            self._judge(program.kind, now_s)
            self._silent.went_on(program, now_s)
            if (silent := self._silent.overdue(program.kind, now_s)) is not None:
                self._conclude(self._programs[silent])
        return program

    def _begin(self, program: Program, query: str) -> AskedQuery:
        """Note that a program makes another query."""
        self._num_open[program.kind, program.is_open_ended] += 1
        self._num_of_several += program.is_open_ended
        if program.is_open_ended:
            self._of_query[query] = program.name
            if program.counts_as_ended:
                self.learned.queries_of(program.kind).note_return(program.num_queries)
                program.counts_as_ended = False
            program.num_queries += 1
        return AskedQuery(program.num_queries)

    def _close_query(self, program: Program) -> None:
        what = program.kind, program.is_open_ended
        self._num_open[what] -= 1
        self._num_of_several -= program.is_open_ended
        if not self._num_open[what]:
            del self._num_open[what]

    def _judge(self, kind: str, now_s: float) -> None:
        """Learn how programs of a kind have gone on."""
        for program, number in self._silent.judged(kind, now_s):
            queries = self.learned.queries_of(kind)
            if program.num_queries > number:
                queries.note_going_on(number)
            else:
                queries.note_end(number)
                program.counts_as_ended = True

    def _end(
        self,
        part: AskedItems,
        request: StepRequest,
        now_s: float,
        num_items: int,
        took_s: float | None,
    ) -> None:
        query = part.query
        expected_s = part.item_s * num_items
        if took_s is None:
            took_s = expected_s
        else:
            query.asked_s += took_s - expected_s
            self._charge(request.record.tenant, took_s - expected_s)
        part.group.took_s += took_s
        query.heard_s = now_s
        part.num_left = max(0, part.num_left - num_items)
        if not part.num_left:
            _close(query, request.node.id, request.lo)

    def _charge(self, tenant: str, seconds: float) -> float:
        """Charge a tenant for work that it got here; return its virtual time before that."""
        if self.on_charge is not None:
            self.on_charge(tenant, seconds)
        return self.tenants.charge(tenant, seconds)

    def _learn(self, program: Program, query: AskedQuery) -> None:
        """Learn from a query that has ended, and has not been cut short."""
        if program.is_open_ended:
            queries = self.learned.queries_of(program.kind)
            queries.note_query(query.number, query.asked_s)
            program.usual_s += queries.mean_work_s(query.number)
        later_s = waited_s = 0.0
        for group in reversed(query.groups):
            way_s = None
            if group.sent_s is not None:
                way_s = max(0.0, query.heard_s - group.sent_s - waited_s)
                waited_s += group.sent_s - group.at_s
            self.learned.observe(group.source, group.done_s, later_s, way_s, asked_s=group.took_s)
            later_s += group.took_s

    def _conclude(self, program: Program) -> None:
        """Forget a program of several queries that has ended, or is taken to have."""
        del self._programs[program.name]
        self._silent.give_up(program)

    def _forget_oldest(self) -> None:
        """Forget the program heard of longest ago. Nothing is learned from one that still has work."""
        program = next(iter(self._programs.values()))
        if not program.queries:
            self._conclude(program)
            return
        del self._programs[program.name]
        for query, asked in program.queries.items():
            _forget(asked)
            self._of_query.pop(query, None)
            self._close_query(program)


def _forget(query: AskedQuery) -> None:
    """Count nothing more of what is open of a query that has ended, or whose program is forgotten."""
    for of_node in query.open.values():
        for part in of_node.values():
            part.num_left = 0


def _close(query: AskedQuery, node: int, lo: int) -> None:
    """Forget a request that has ended."""
    of_node = query.open[node]
    del of_node[lo]
    if not of_node:
        del query.open[node]
