"""How many calls applications make, of how many tokens, and which share of these is repeated.

Source: Parrot Table 1. Differs: tokens of prompts alone; a token is repeated if an earlier call of the same
kind of application begins with the same tokens up to it.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.parrot.agents import coding
from benchmarks.parrot.workflows import Call, Output, Workflow
from benchmarks.parrot.workloads import DOCUMENT_TOKENS, chain, copilot, map_reduce
from benchmarks.report import Row, Value
from stretto.costs.mean_output import num_tokens

TABLE_1 = "Table 1: calls, tokens and share repeated"


def repeated_rows() -> list[Row]:
    """Return a row for each application, and the paper's."""
    shortest, longest = min(DOCUMENT_TOKENS), max(DOCUMENT_TOKENS)
    chats = [arrival.workflow for arrival in copilot(0, num=10)]
    found = [
        _row("chain, shortest document", [chain("short", shortest, 1024, 50)]),
        _row("map-reduce, longest document", [map_reduce("long", longest, 1024, 50)]),
        _row("search chat, ten users", chats),
        _row("coding, four files", [coding("project", 4)]),
        _row("coding, eight files", [coding("project", 8)]),
    ]
    quoted = {
        "long document analytics": ("2-40", "3.5k-80k", "3 %"),
        "chat search": ("2-10", "5k", "94 %"),
        "MetaGPT": ("14", "17k", "72 %"),
        "AutoGen": ("17", "57k", "99 %"),
    }
    for name, (calls, tokens, share) in quoted.items():
        values: dict[str, Value] = {"calls": calls, "tokens": tokens, "repeated": share}
        found.append(Row(TABLE_1, f"paper: {name}", values, "quoted"))
    return found


def _row(name: str, workflows: Sequence[Workflow]) -> Row:
    num_calls = sum(len(workflow.calls) for workflow in workflows)
    num_prompt = sum(workflow.prompt_tokens for workflow in workflows)
    share = f"{repeated_tokens(workflows) / num_prompt:.0%}"
    return Row(TABLE_1, name, {"calls": num_calls, "tokens": num_prompt, "repeated": share}, "computed")


def repeated_tokens(workflows: Sequence[Workflow]) -> int:
    """Return how many prompt tokens of all calls are repeated."""
    known: set[tuple[object, ...]] = set()
    num_repeated = 0
    for number, workflow in enumerate(workflows):
        length_of = {call.name: call.num_output for call in workflow.calls}
        for call in workflow.calls:
            begin: tuple[object, ...] = ()
            for part, key in zip(call.parts, _keys(call, number), strict=True):
                begin = (*begin, key)
                if begin in known:
                    num_repeated += length_of[part.call] if isinstance(part, Output) else num_tokens(part)
                known.add(begin)
    return num_repeated


def _keys(call: Call, number: int) -> list[object]:
    """Return a key for each part of a prompt, equal for parts that are the same text."""
    return [(number, part.call) if isinstance(part, Output) else part for part in call.parts]
