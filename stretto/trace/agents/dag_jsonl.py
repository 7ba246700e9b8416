"""The reader of AIPerf's `dag_jsonl`: sessions of turns that fork, spawn and join other sessions.

Each line is a session with `turns`, and each turn is a chat request. A turn is sent `delay` (in milliseconds)
after the turn before it has been answered; its messages come after those of that turn and the answer.

- `forks`: sessions that go on from this turn: they begin with its messages and its answer. The session
  itself ends here, or goes on beside them with `background`.
- `spawns`: sessions that begin afresh when this turn has been answered. The turn after it waits for their
  last turns, or the turn that `join_at` names. Spawns of a last turn are not waited for.
- `pre_session_spawns`: sessions that begin afresh together with this one.
- `context_mode`: with "message_array_with_responses", the messages of each turn are a whole prompt.

A session that no other one names begins with the trace. One that is spawned from several places runs in
each: its requests are then named after the place.

Source: AIPerf 0.13, `dataset/loader/dag_jsonl.py` and `dag_jsonl_models.py`. Differs: the delay of a turn
that joins counts from the last end that it waits for (AIPerf skips it); each session runs once, and all begin
at once (AIPerf draws sessions at a rate); `orchestrator` sessions, which send nothing, are not read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from stretto.schema.typed import Count, Number, Object, Text
from stretto.trace.agents.requests import (
    After,
    AgentRequest,
    AgentTrace,
    ChatPrompt,
    Messages,
    Millis,
    checked_trace,
)
from stretto.trace.lines import JsonLine, TraceError, json_lines

_MAX_REQUESTS = 1_000_000
_SESSION = ("session_id", "turns", "pre_session_spawns", "context_mode", "orchestrator")
_TURN = ("messages", "model", "max_tokens", "tools", "extra", "forks", "spawns", "delay")
_ACCUMULATED, _WHOLE = "deltas_without_responses", "message_array_with_responses"
_Context: TypeAlias = Literal["deltas_without_responses", "message_array_with_responses"]
_MAX_DEPTH = 500
_Child: TypeAlias = Text | Object


@dataclass(frozen=True, slots=True)
class _Spawn:
    """Children of a turn, and the turn that waits for them; None if none does."""

    children: tuple[str, ...]
    joined_by: int | None


@dataclass(frozen=True, slots=True)
class _Turn:
    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...]
    delay_s: float
    forks: tuple[str, ...]
    spawns: tuple[_Spawn, ...]
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Session:
    line: JsonLine
    name: str
    turns: tuple[_Turn, ...]
    beside: tuple[str, ...]
    context: str

    def children(self) -> Iterator[str]:
        yield from self.beside
        for turn in self.turns:
            yield from turn.forks
            for spawn in turn.spawns:
                yield from spawn.children


def read_dag_jsonl(path: Path) -> AgentTrace:
    """Read sessions in AIPerf's `dag_jsonl`.

    Raises:
        TraceError: the file does not fit the format.
    """
    sessions: dict[str, _Session] = {}
    for line in json_lines(path):
        session = _read_session(line)
        if session.name in sessions:
            first = sessions[session.name].line.number
            raise line.error(f"session {session.name!r} is in line {first} already")
        sessions[session.name] = session
    _check_children(sessions)
    return checked_trace(path, _Expansion(path, sessions).requests())


def _read_session(line: JsonLine) -> _Session:
    name = line.required("session_id", Text)
    if line.optional("orchestrator", bool, False):
        raise line.error("orchestrator sessions are not supported")
    line.check_names(_SESSION)
    turns = line.required("turns", list[Object])
    if not turns:
        raise line.error("turns is empty")
    return _Session(
        line,
        name,
        tuple(_read_turn(line.within(f"turns[{n}]", turn), n, len(turns)) for n, turn in enumerate(turns)),
        tuple(line.optional("pre_session_spawns", list[Text], [])),
        line.optional("context_mode", _Context, _ACCUMULATED),
    )


def _read_turn(turn: JsonLine, number: int, num_turns: int) -> _Turn:
    turn.check_names(_TURN)
    turn.optional("model", Text)
    turn.optional("max_tokens", Number)
    turn.optional("extra", Object)
    forks = []
    for entry in turn.optional("forks", list[_Child], []):
        fork = turn.within("forks", {"child": entry} if isinstance(entry, str) else entry)
        fork.check_names(("child", "background"))
        if not fork.optional("background", bool, False) and number + 1 < num_turns:
            raise fork.error("only the last turn may fork, unless the fork has background=true")
        forks.append(fork.required("child", Text))
    spawns = []
    for entry in turn.optional("spawns", list[_Child], []):
        spawn = turn.within("spawns", {"children": [entry]} if isinstance(entry, str) else entry)
        spawn.check_names(("children", "join_at"))
        joined_by = spawn.optional("join_at", Count)
        if joined_by is not None and not number < joined_by < num_turns:
            raise spawn.error(f"join_at is {joined_by}; it must be from {number + 1} to {num_turns - 1}")
        if joined_by is None and number + 1 < num_turns:
            joined_by = number + 1
        spawns.append(_Spawn(tuple(spawn.required("children", list[Text])), joined_by))
    return _Turn(
        tuple(turn.required("messages", Messages)),
        tuple(turn.optional("tools", list[Object], [])),
        turn.optional("delay", Millis, 0.0) / 1000,
        tuple(forks),
        tuple(spawns),
        turn.fields,
    )


def _check_children(sessions: Mapping[str, _Session]) -> None:
    """Check that children exist and that no session is its own descendant."""
    forked: dict[str, str] = {}
    for session in sessions.values():
        if unknown := [child for child in session.children() if child not in sessions]:
            raise session.line.error(f"there is no session {unknown[0]!r} in this file")
        for child in (child for turn in session.turns for child in turn.forks):
            if child in forked:
                raise session.line.error(f"{child!r} is forked twice, here and by {forked[child]!r}")
            forked[child] = session.name
    depths: dict[str, int] = {}
    for root in sessions.values():
        path = {root.name: root.children()}
        while path:
            name = next(reversed(path))
            child = next(path[name], "")
            if not child:
                path.popitem()
                depths[name] = 1 + max((depths[child] for child in sessions[name].children()), default=0)
                if depths[name] > _MAX_DEPTH:
                    raise sessions[name].line.error(f"more than {_MAX_DEPTH} sessions begin one in another")
            elif child in path:
                circle = " > ".join([*list(path)[list(path).index(child) :], child])
                raise sessions[child].line.error(f"sessions begin each other in a circle: {circle}")
            elif child not in depths:
                path[child] = sessions[child].children()


class _Expansion:
    """The requests of all sessions; a session that is spawned from several places runs in each."""

    def __init__(self, path: Path, sessions: Mapping[str, _Session]) -> None:
        self._path = path
        self._sessions = sessions
        self._num_parents = Counter(c for session in sessions.values() for c in session.children())
        self._requests: list[AgentRequest] = []

    def requests(self) -> list[AgentRequest]:
        for name in self._sessions:
            if name not in self._num_parents:
                self._run(name, name, (), None)
        return self._requests

    def _run(self, name: str, place: str, after: tuple[After, ...], parent: str | None) -> str:
        """Add the requests of a session that begins when `after` is met; return the id of the last one.

        Args:
            place: name of the session where it runs; it differs from `name` if it runs in several places.
            parent: request whose conversation it goes on from.
        """
        session = self._sessions[name]
        joins: dict[int, list[str]] = {}
        for child in session.beside:
            self._run(child, self._place(child, name, place, "pre"), after, None)
        before: str | None = None
        for number, turn in enumerate(session.turns):
            conditions = after if before is None else (After(before),)
            waits = (*conditions, *(After(last) for last in joins.get(number, ())))
            continues = before if before is not None else parent
            request = f"{place}/{number}"
            self._add(session, turn, request, waits, None if session.context == _WHOLE else continues)
            for child in turn.forks:
                self._run(child, self._place(child, name, place, str(number)), (After(request),), request)
            for spawn in turn.spawns:
                for child in spawn.children:
                    last = self._run(
                        child, self._place(child, name, place, str(number)), (After(request),), None
                    )
                    if spawn.joined_by is not None:
                        joins.setdefault(spawn.joined_by, []).append(last)
            before = request
        assert before is not None
        return before

    def _place(self, child: str, parent: str, place: str, turn: str) -> str:
        runs_once = self._num_parents[child] == 1 and place == parent
        return child if runs_once else f"{place}/{turn}/{child}"

    def _add(
        self, session: _Session, turn: _Turn, name: str, waits: Sequence[After], continues: str | None
    ) -> None:
        if len(self._requests) >= _MAX_REQUESTS:
            raise TraceError(
                f"{self._path}: sessions that spawn each other make over {_MAX_REQUESTS} requests"
            )
        self._requests.append(
            AgentRequest(
                id=name,
                line=session.line.number,
                prompt=ChatPrompt(turn.messages, continues, turn.tools),
                arrival_s=0.0 if waits else turn.delay_s,
                after=tuple(After(wait.request, turn.delay_s) for wait in waits),
                output_tokens=turn.fields.get("max_tokens"),
                model=turn.fields.get("model"),
                extra=turn.fields.get("extra") or {},
            )
        )
