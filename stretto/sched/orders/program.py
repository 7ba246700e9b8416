"""What programs have asked of an engine: records without behaviour, which the account of programs keeps."""

from __future__ import annotations

from dataclasses import dataclass, field

from stretto.costs.learned_work import Source
from stretto.costs.work_left import WorkLeft
from stretto.sched.queries.request import ProgramKey


@dataclass(slots=True)
class AskedGroup:
    """Requests of one instant: their source, the work asked for up to and with them, what they took, and when
    the first of them was sent.
    """

    source: Source
    done_s: float
    at_s: float
    took_s: float = 0.0
    sent_s: float | None = None


@dataclass(slots=True)
class AskedItems:
    """Items of one request that have arrived and not ended, and the expected seconds of each.

    Attributes:
        query: the query that asks for them.
        group: what arrived at one instant with them.
        fresh_source: source by which it is learned how much of a prompt is not cached.
        num_known: units of work of each item, for an LLM the tokens of its prompt.
        fresh: share of the prompt that was expected not to be.
    """

    query: AskedQuery
    group: AskedGroup
    fresh_source: Source
    num_known: float
    fresh: float
    item_s: float
    num_left: int
    hi: int


@dataclass(slots=True, eq=False)
class AskedQuery:
    """What one query has asked of an engine.

    Attributes:
        number: place among the queries of its program, from 1 on.
        asked_s: seconds of all work that it has asked for so far: what really ran, and what is expected of
            the rest.
        done_s: `asked_s` at its last arrival.
        source: source of its last arrival, until `left` is looked up.
        left: what queries like it asked for after such an arrival; None if nothing is known of its kind.
        heard_s: time at which something of it arrived or ended last.
        num_before: units of work of the last prompt of its program before it.
        open: requests that have not ended, by node, and by their first item.
    """

    number: int
    asked_s: float = 0.0
    done_s: float = 0.0
    source: Source | None = None
    left: WorkLeft | None = None
    heard_s: float = 0.0
    num_before: float = 0.0
    groups: list[AskedGroup] = field(default_factory=list)
    open: dict[int, dict[int, AskedItems]] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Program:
    """What one program has asked of an engine.

    Attributes:
        is_open_ended: whether it has a name, under which further queries may come.
        is_over: whether its end was said while some of its queries had not ended.
        queries: queries that have not ended, the last one to come last.
        num_queries: number of its queries so far, if it may be several; else 0.
        usual_s: seconds of work that as many queries of its kind as it has ended usually take, if it may be
            several.
        num_known: units of work of its last prompt.
        counts_as_ended: whether it is taken to have ended, though it may go on.
    """

    name: ProgramKey
    kind: str
    is_open_ended: bool
    is_over: bool = False
    heard_s: float = 0.0
    num_queries: int = 0
    usual_s: float = 0.0
    num_known: float = 0.0
    counts_as_ended: bool = False
    queries: dict[str, AskedQuery] = field(default_factory=dict)

    @property
    def asked_s(self) -> float:
        """Seconds of all work that its queries which have not ended have asked for. For tests."""
        return sum(query.asked_s for query in self.queries.values())
