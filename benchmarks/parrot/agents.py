"""Agents that write a program together: an architect, then a coder for each file, then rounds of reviews and
revisions of all files.

Each prompt after the architect's begins with what the agents of its stage have in common, which is made while
the workflow runs, and ends with the name of one file. Answers have the mean lengths of 57 recorded calls.

Source: Parrot §8.4.
"""

from __future__ import annotations

from benchmarks.parrot.workflows import Call, Output, Part, Workflow
from stretto.sim.synthetic_output import filler

NUM_ROUNDS = 3
_DESIGN_TOKENS, _REVIEW_TOKENS = 706, 290
_CODE_TOKENS = (417, 380, 412, 430)


def coding(name: str, num_files: int, length_share: float = 1.0) -> Workflow:
    """Return the workflow of a team that writes `num_files` files.

    Args:
        length_share: lengths of answers, as a share of those of the recorded calls.
    """
    design_tokens, review_tokens, *code_tokens = (
        max(1, round(length_share * length)) for length in (_DESIGN_TOKENS, _REVIEW_TOKENS, *_CODE_TOKENS)
    )
    task = filler(name, 20)
    calls = [Call("architect", (filler("role of architects", 160), task), design_tokens, 1)]
    files = [filler(f"file {number}", 8) for number in range(num_files)]
    coder: tuple[Part, ...] = (filler("role of coders", 300), task, Output("architect"))
    codes = [Call(f"code{number}", (*coder, file), code_tokens[0], 1) for number, file in enumerate(files)]
    calls += codes
    for turn in range(1, NUM_ROUNDS + 1):
        codebase = tuple(Output(call.name) for call in codes)
        reviewer: tuple[Part, ...] = (filler("role of reviewers", 280), task, *codebase)
        reviews = [
            Call(f"review{turn}_{number}", (*reviewer, file), review_tokens, 1)
            for number, file in enumerate(files)
        ]
        comments = tuple(Output(call.name) for call in reviews)
        reviser: tuple[Part, ...] = (filler("role of revisers", 300), task, *codebase, *comments)
        codes = [
            Call(f"revise{turn}_{number}", (*reviser, file), code_tokens[turn], 1)
            for number, file in enumerate(files)
        ]
        calls += reviews + codes
    return Workflow("coding", tuple(calls))
