"""What the ops do that no engine runs: the graph scheduler evaluates them where it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stretto.documents import support
from stretto.graph.ops import Inputs, Settings
from stretto.model.errors import BadReply
from stretto.model.tools import AgentRun, RunEnd, ToolResult
from stretto.model.values import ABSENT, Hit, as_text, document_order


def begins_with_word(text: str, word: str) -> bool:
    """Return whether a text begins with a word as a condition asks: in any case, behind blanks and marks."""
    said, wanted = text.lstrip(" \t\r\n\"'*`").casefold(), word.casefold()
    return said.startswith(wanted) and not said[len(wanted) : len(wanted) + 1].isalnum()


def evaluate_condition(inputs: Inputs, settings: Settings) -> Mapping[str, object]:
    """Pass a value on to one of two outputs, by whether it is as the settings ask."""
    value = inputs["value"]
    wanted = settings.get("equals")
    if wanted is None:
        holds = bool(value)
    elif isinstance(value, str):
        holds = begins_with_word(value, str(wanted))
    else:
        holds = value == wanted
    return {"yes": value if holds else ABSENT, "no": ABSENT if holds else value}


def evaluate_select(inputs: Inputs, _: Settings) -> Mapping[str, object]:
    """Return the first present value."""
    return {"": next((value for value in inputs.values() if value is not ABSENT), ABSENT)}


def evaluate_quote(inputs: Inputs, _: Settings) -> Mapping[str, object]:
    """Return the sentence of the hits that answers the question best."""
    passages = [as_text(hit) for hit in flat_hits(inputs["hits"])]
    return {"": support.quote(as_text(inputs["question"]), passages) or ABSENT}


def evaluate_supported(inputs: Inputs, settings: Settings) -> Mapping[str, object]:
    """Choose the first present draft that the quote supports, else the quote. Say that there is no answer if
    the hits do not answer the question.
    """
    fixed = ("question", "hits", "quote")
    drafts = [as_text(value) for name, value in inputs.items() if name not in fixed and value is not ABSENT]
    share = settings["share"]
    assert isinstance(share, int | float)
    question, quoted = as_text(inputs["question"]), as_text(inputs["quote"])
    if not support.is_answered(question, [as_text(hit) for hit in flat_hits(inputs["hits"])]):
        return {"": support.nearest(question, quoted)}
    return {"": support.best_supported(question, quoted, drafts, share)}


def flat_hits(value: object) -> list[Hit]:
    """Return the present hits of lists of hits, however nested."""
    if isinstance(value, Hit):
        return [value]
    assert isinstance(value, list | tuple)
    return [hit for item in value if item is not ABSENT for hit in flat_hits(item)]


def _best_hits(values: Sequence[object], best: int, distinct: bool) -> list[Hit]:
    """Return the `best` highest-scoring hits of all lists; with `distinct`, each chunk once, with its best
    score.
    """
    ranked = document_order(flat_hits(values))
    if distinct:
        first: dict[tuple[str, int], Hit] = {}
        for hit in ranked:
            first.setdefault((hit.chunk.source, hit.chunk.index), hit)
        ranked = list(first.values())
    return ranked[:best]


def evaluate_aggregate(inputs: Inputs, settings: Settings) -> Mapping[str, object]:
    """Combine the present values as the settings say; the order is by port and index, never by arrival."""
    values = [value for value in inputs.values() if value is not ABSENT]
    if not values:
        return {"": ABSENT}
    best, join = settings.get("best"), settings.get("join")
    if best is not None:
        assert isinstance(best, int)
        return {"": _best_hits(values, best, bool(settings.get("distinct")))}
    items = [item for value in values for item in (value if isinstance(value, list) else [value])]
    items = [item for item in items if item is not ABSENT]
    if join is not None:
        return {"": _joined(items, str(join)) if items else ABSENT}
    return {"": items}


def _joined(items: Sequence[object], separator: str) -> str:
    try:
        return separator.join(map(as_text, items))
    except TypeError as error:
        raise BadReply(f"{error}; the transform to_json makes one") from error


def evaluate_agent_run(inputs: Inputs, settings: Settings) -> Mapping[str, object]:
    """Make the record of an agent's run of its answer and the results of its turns."""
    turns = [value for port, value in inputs.items() if port != "answer" and isinstance(value, list)]
    calls = tuple(tuple(one for one in turn if isinstance(one, ToolResult)) for turn in turns)
    ended: RunEnd = "max_turns" if settings.get("ended") == "max_turns" else "answered"
    return {"": AgentRun(str(inputs["answer"]), ended, calls)}
