"""The ledger of a client: its variables, and the call or the value that produces each.

An invalid call is refused here, at once, and not only later by the session, when its caller has gone on.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

from stretto.model.errors import UserError
from stretto.model.record import record
from stretto.programs.fragment import WaitingCall
from stretto.programs.native_readers import NativeReaders
from stretto.programs.variable_names import VariableNames


@record
class _Note:
    """The changes that one call or value has made in a ledger.

    Attributes:
        made: variables that it makes.
        was_awaited: variables that it makes and others awaited.
        awaited: variables that only it awaits.
    """

    made: tuple[str, ...]
    was_awaited: list[str]
    awaited: list[str]


class Ledger:
    """A client's variables, and what each is made of. Any thread may use it.

    Attributes:
        names: the names that its variables have had.
        natives: which variables are made of those of running functions of the client.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.names = VariableNames()
        self.natives = NativeReaders()
        self._made: dict[str, tuple[str, ...]] = {}
        self._set: dict[str, None] = {}
        self._awaited: dict[str, None] = {}
        self._notes: list[_Note] | None = None

    def __len__(self) -> int:
        return len(self._made)

    def knows(self, name: str) -> bool:
        """Return whether a variable has or will get a value, and was not given up."""
        return name in self._made

    def is_set(self, name: str) -> bool:
        """Return whether the client has set a variable to a value."""
        return name in self._set

    def note_set(self, name: str) -> None:
        """Note that the client sets a variable to a value.

        Raises:
            UserError: it has one already, or a call produces it.
        """
        self._note(name, ())
        self._set[name] = None

    def note_native(self, name: str, reads: tuple[str, ...]) -> None:
        """Note that a function of the client will make a value for a variable of the variables `reads`.

        Raises:
            UserError: it has one already, or a call produces it.
        """
        self._note(name, reads)
        self.natives.begin(name)

    def _note(self, name: str, reads: tuple[str, ...]) -> None:
        with self._lock:
            if name in self._made:
                raise UserError(f"the variable {name!r} has a value, or a call produces it, already")
            self._add([name], reads)

    def note_call(self, call: WaitingCall, given: Mapping[str, str]) -> None:
        """Note what a call produces; `given` are the outputs that go to variables which existed before.

        Raises:
            UserError: a given variable has a value already or is given twice, or the call would wait for
                itself.
        """
        with self._lock:
            self._check_given(call, given)
            if _can_be_circle(call, self._awaited):
                _check_way(call, _circle(self._made, call.reads, set(given.values())))
            self._add(call.outputs.values(), call.reads)

    def note_calls(self, calls: Iterable[WaitingCall]) -> None:
        """Note calls that come together, all of whose outputs go to variables that they name. The time is
        linear in the calls and in what those that may close a circle are made of.

        Raises:
            UserError: as `note_call`, when some of the calls are noted already.
        """
        with self._lock:
            suspects = []
            for call in calls:
                self._check_given(call, call.outputs)
                if _can_be_circle(call, self._awaited):
                    suspects.append(call)
                self._add(call.outputs.values(), call.reads)
            done: set[str] = set()
            for call in suspects:
                for output in call.outputs.values():
                    _check_way(call, _way_round(self._made, output, done))

    def is_awaited(self, name: str) -> bool:
        """Return whether a call waits for a variable that nothing produces yet."""
        return name in self._awaited

    def forget(self, names: Collection[str]) -> None:
        """Forget variables that were given up."""
        with self._lock:
            for name in names:
                self._made.pop(name, None)
                self._set.pop(name, None)
                self._awaited.pop(name, None)
                self.natives.forget(name)

    @contextmanager
    def all_or_none(self) -> Iterator[None]:
        """Take back what is noted in the block if it raises. No other thread may note something meanwhile."""
        notes = self._notes = []
        try:
            yield
        except BaseException:
            for note in reversed(notes):
                for name in note.made:
                    self._made.pop(name, None)
                    self._set.pop(name, None)
                for name in note.awaited:
                    self._awaited.pop(name, None)
                self._awaited.update(dict.fromkeys(note.was_awaited))
            raise
        finally:
            self._notes = None

    def _add(self, names: Collection[str], reads: tuple[str, ...]) -> None:
        """Note of what variables are made, and which ones they are made of that do not exist yet."""
        for name in names:
            self._made[name] = reads
        self.natives.add(names, reads)
        was_awaited = [name for name in names if name in self._awaited]
        for name in was_awaited:
            del self._awaited[name]
        new = [name for name in reads if name not in self._made and name not in self._awaited]
        self._awaited.update(dict.fromkeys(new))
        if self._notes is not None:
            self._notes.append(_Note(tuple(names), was_awaited, new))

    def _check_given(self, call: WaitingCall, given: Mapping[str, str]) -> None:
        """Check that the variables `given` for the outputs of a call differ and have no value.

        Raises UserError if not.
        """
        counts = Counter(given.values()) if len(set(given.values())) < len(given) else {}
        for name, variable in given.items():
            if variable in self._made or counts.get(variable, 1) > 1:
                raise UserError(
                    f"{call.work.name}: the variable {variable!r} for the output {name!r} has a value, "
                    "or a call produces it, already"
                )


def _can_be_circle(call: WaitingCall, awaited: Collection[str]) -> bool:
    made = set(call.outputs.values())
    return not made.isdisjoint(awaited) or not made.isdisjoint(call.reads)


def _check_way(call: WaitingCall, through: list[str]) -> None:
    """Check that a call closes no circle through some variables. Raises UserError if there are any."""
    if through:
        raise UserError(f"{call.work.name}: a cycle through the variables {', '.join(through)}")


def _way_round(made: Mapping[str, tuple[str, ...]], output: str, done: set[str]) -> list[str]:
    """Return the variables on a circle among those that `output` is made of; empty if there is none.

    Variables in `done` are on no circle; those that are looked at are added to it.
    """
    way = dict.fromkeys([output])
    unseen = [iter(made.get(output, ()))] if output not in done else []
    while unseen:
        source = next(unseen[-1], None)
        if source is None:
            unseen.pop()
            done.add(way.popitem()[0])
        elif source in way:
            return list(way)[list(way).index(source) :]
        elif source not in done:
            way[source] = None
            unseen.append(iter(made.get(source, ())))
    return []


def _circle(made: Mapping[str, tuple[str, ...]], reads: tuple[str, ...], ends: Collection[str]) -> list[str]:
    """Return the variables on a path of dependencies from `ends` to `reads`, which a call that reads
    `reads` and produces `ends` would close to a circle; empty if there is none.
    """
    came_from: dict[str, str] = dict.fromkeys(reads, "")
    stack = list(came_from)
    while stack:
        name = stack.pop()
        if name in ends:
            way = [name]
            while came_from[way[-1]]:
                way.append(came_from[way[-1]])
            return way
        for source in made.get(name, ()):
            if source not in came_from:
                came_from[source] = name
                stack.append(source)
    return []
