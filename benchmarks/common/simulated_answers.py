"""Answers of a simulated LLM: as long as allowed, or those of a deterministic engine."""

from __future__ import annotations

from stretto.costs.mean_output import num_tokens
from stretto.engines.contract import SteppedLLM
from stretto.model.tasks import Decode, Done, Failed, LLMTask, Piece
from stretto.sim.synthetic_output import OutputSource, SyntheticOutput


def as_max_tokens(task: LLMTask, decode: Decode) -> int:
    """Return the output limit of a task as its output length, for simulations in which every answer is as
    long as allowed.
    """
    return decode.max_tokens


def output_as_of(executable: SteppedLLM) -> OutputSource:
    """Return a function that answers the tasks of a simulated LLM as the deterministic engine `executable`
    does.

    Lengths in tokens are estimated from the texts.
    """

    def speak(task: LLMTask, decode: Decode) -> SyntheticOutput:
        executable.admit(task, ())
        pieces: list[str] = []
        value: object = None
        while executable.has_work():
            for event in executable.step():
                match event:
                    case Piece(value=piece):
                        pieces.append(piece)
                    case Done(value=value):
                        pass
                    case Failed(error=error):
                        raise error
        executable.release(task.query)
        ends = []
        total = 0
        for piece in pieces:
            total += num_tokens(piece)
            ends.append(total)
        assert isinstance(value, str | list)
        return SyntheticOutput(value, max(total, 1), tuple(ends) if decode.items else ())

    return speak
