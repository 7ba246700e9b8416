"""The search of `stretto size` with its progress on stderr, and the tables that show the answer."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from stretto.cli.progress import spinner
from stretto.cli.time_limit import limited
from stretto.engines.processor import num_cores
from stretto.sizing.answer import Answer, ServedLoad, answers
from stretto.sizing.load import Load
from stretto.sizing.processes import in_processes
from stretto.sizing.report import UNITS, broken_text, change_text, notes, sentence, so_far, spread, tried
from stretto.sizing.servers import Server
from stretto.sizing.study import Study, shown_amount, shown_load


def searched(
    study: Study,
    servers: Sequence[Server],
    wanted: Load | None,
    prices: Sequence[float] | None,
    *,
    with_variants: bool,
    seconds: float | None = None,
) -> tuple[Answer, bool]:
    """Return the answer, and whether it is whole: Ctrl-C and the end of the seconds end the search, and keep
    what is known.
    """
    answer = Answer(study.objectives, wanted=wanted)
    try:
        with limited(seconds), spinner(Console(stderr=True, emoji=False)) as progress:
            task = progress.add_task("simulating", total=None)

            def note(text: str) -> None:
                known = so_far(answer)
                progress.update(task, description=escape(f"{known}; {text}" if known else text))

            with in_processes(replace(study, note=note), num_cores()) as told:
                for found in answers(told, servers, wanted, prices, with_variants=with_variants):
                    answer = found
    except KeyboardInterrupt:
        print("interrupted; this is known so far:", file=sys.stderr)
        return answer, False
    except TimeoutError:
        print(f"after {seconds} s; this is known so far:", file=sys.stderr)
        return answer, False
    return answer, True


def print_answer(study: Study, answer: Answer, servers: Sequence[Server]) -> None:
    """Print the answer for people: one sentence, the tables, and what it rests on."""
    console = Console(emoji=False)
    console.print(sentence(answer), markup=False, highlight=False, soft_wrap=True)
    if not answer.alone:
        for line in tried(study):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    if answer.alone:
        console.print()
        console.print(_servers_table(study, answer))
    if answer.fleets.fewest or answer.fleets.best:
        console.print()
        console.print(_fleets_table(answer))
    if answer.what_ifs:
        changed = answer.best or next(one for one in answer.alone if not one.serves_nothing)
        console.print()
        console.print(_changes_table(changed, answer))
    console.print()
    for one in (*answer.alone, *([answer.best] if answer.best is not None else [])):
        if (known := len(one.capacity.levels)) < one.num_draws:
            console.print(f"{one.fleet.name}: {known} of {one.num_draws} draws", highlight=False)
    for line in notes(study, answer, servers):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _servers_table(study: Study, answer: Answer) -> Table:
    unit = UNITS[study.unit]
    has_prices = any(one.price is not None for one in answer.alone)
    columns = ["one server of", unit, "over draws", "breaks at", "missed there"]
    table = Table(*columns, *([f"price of {unit}, an hour"] if has_prices else []), box=None, pad_edge=False)
    for one in answer.alone:
        amount = one.capacity.middle
        broken = (
            ("", "")
            if one.broken is None
            else (shown_amount(one.broken.load.amount), broken_text(one.broken))
        )
        price = [] if one.price is None else [f"{one.price / amount:.3g}" if amount else ""]
        label = one.fleet.servers[0][0].label
        table.add_row(label, shown_amount(amount), spread(one.capacity), *broken, *price)
    return table


def _fleets_table(answer: Answer) -> Table:
    assert answer.wanted is not None
    best = answer.fleets.best
    rows = {fleet.name: price for fleet, price in (*answer.fleets.fewest, *([best] if best else []))}
    has_prices = any(price is not None for price in rows.values())
    table = Table(
        f"fleets for {shown_load(answer.wanted)}",
        *(["an hour"] if has_prices else []),
        "",
        box=None,
        pad_edge=False,
    )
    for name, price in sorted(rows.items(), key=lambda row: row[1] or 0.0):
        is_best = best is not None and name == best[0].name
        shown = [f"{price:.2f}"] if price is not None else ([""] if has_prices else [])
        table.add_row(name, *shown, "cheapest" if is_best and has_prices else "")
    return table


def _changes_table(changed: ServedLoad, answer: Answer) -> Table:
    table = Table(f"{changed.fleet.name}, changed", "load that it serves", "", box=None, pad_edge=False)
    for one in answer.what_ifs:
        table.add_row(one.name, change_text(one), one.reason if one.shares else "")
    return table
