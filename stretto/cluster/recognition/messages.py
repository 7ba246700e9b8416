"""What a recogniser is told of a request and its answer, and what it says of the program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from stretto.cluster.recognition.fingerprints import PromptPrint
from stretto.cluster.recognition.ids import ProgramIds
from stretto.model.record import record

Confidence: TypeAlias = Literal["certain", "sure", "doubtful", "new"]
Way: TypeAlias = Literal["id", "hint", "continues", "forks", "answer_inside", "opening"]


@record
class AskedProgram:
    """What is known of a request when it arrives.

    Attributes:
        tenant: owner of the request, or a digest of its key. Nothing is shared with other tenants.
        prompt: fingerprint of its prompt; None if it has none, or several.
    """

    tenant: str
    ids: ProgramIds
    prompt: PromptPrint | None = None


@record
class AnswerTexts:
    """What is known of an answer.

    Attributes:
        turn: what a later prompt would have as its turn, at least the first 512 characters.
        text: what it says, without calls of tools.
        given: texts that it gives to tools, at least 40 characters each.
        response_id: id under which the server has stored it; "" if it has not.
    """

    turn: str
    text: str = ""
    given: Sequence[str] = ()
    response_id: str = ""


@record
class Recognised:
    """The program of a request.

    Attributes:
        key: number of the request, for `answered` and `failed`.
        program: number of its program, to which it surely belongs.
        told_as: number of the program that its client is told: another one than `program` if it may belong to
            that, which is not sure.
        way: how the program was found.
        is_last: whether its client says that the program makes no other request.
    """

    key: int
    program: int
    told_as: int
    confidence: Confidence
    way: Way
    is_last: bool = False
