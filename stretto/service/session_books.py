"""The books of a session at the service: its variables, what they are made of, and what they take."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from stretto.http.refusals import Refused, over_limit
from stretto.programs.fragment import WaitingCall
from stretto.programs.ledger import Ledger
from stretto.service.refusals import conflict, not_found
from stretto.service.submitted import ReadValue
from stretto.service.tenants import Tenant

_LATER_S = 1.0


class SessionBooks:
    """The variables of a session that requests have named and not given up.

    Attributes:
        ledger: what produces each of them.
    """

    def __init__(self, tenant: Tenant) -> None:
        self.ledger = Ledger()
        self._tenant = tenant
        self._depths: dict[str, int] = {}
        self._bytes_of: dict[str, int] = {}
        self._num_bytes = 0
        self._num_names = 0

    def __len__(self) -> int:
        return len(self._depths)

    def add(self, names: Iterable[str]) -> None:
        """Add variables that were named, and of which nothing is known yet."""
        for name in names:
            self._depths.setdefault(name, 0)

    def add_depths(self, depths: Mapping[str, int]) -> None:
        """Add variables, with how many calls each depends on one after the other."""
        self._depths.update(depths)

    def forget(self, name: str) -> None:
        """Forget a variable that was given up."""
        del self._depths[name]
        self._num_bytes -= self._bytes_of.pop(name, 0)
        self.ledger.forget([name])

    def new_name(self, stem: str) -> str:
        """Return an id for a variable that has none yet."""
        while True:
            self._num_names += 1
            name = f"{stem}.{self._num_names}"
            if name not in self._depths:
                return name

    def check_limits(self, values: Mapping[str, ReadValue], named: Collection[str]) -> None:
        """Check that a session may have these values, and all variables that a request names. Raises Refused
        if not.
        """
        limits = self._tenant.limits
        num_new = sum(name not in self._depths for name in named)
        if len(self._depths) + num_new > limits.variables:
            raise over_limit(f"a session has at most {limits.variables} variables; give some up", _LATER_S)
        if self._num_bytes + sum(read.num_bytes for read in values.values()) > limits.bytes:
            raise over_limit(f"values of a session have at most {limits.bytes} bytes; give some up", _LATER_S)

    def note(self, values: Collection[str], calls: Sequence[WaitingCall], depths: dict[str, int]) -> None:
        """Note values and calls in the ledger, and in `depths` how deep the variables of the calls are.

        Raises:
            UserError: a variable has a value already, calls wait for each other, or too many do.
        """
        for name in values:
            self._check_free(name)
            self.ledger.note_set(name)
        made: set[str] = set()
        for call in calls:
            for name in call.outputs.values():
                self._check_free(name, made)
            made.update(call.outputs.values())
        self.ledger.note_calls(calls)
        for call in calls:
            self._note_depth(call, depths)

    def add_values(self, values: Mapping[str, ReadValue]) -> None:
        """Count values that were set."""
        for name, read in values.items():
            self._depths.setdefault(name, 0)
            self._bytes_of[name] = read.num_bytes
            self._num_bytes += read.num_bytes

    def _note_depth(self, call: WaitingCall, depths: dict[str, int]) -> None:
        deepest = 0
        for name in call.reads:
            if name not in depths:
                depths[name] = self._depths.get(name, 0)
            deepest = max(deepest, depths[name])
        if deepest >= self._tenant.limits.depth:
            raise Refused(
                422, "over_limit", f"at most {self._tenant.limits.depth} calls may depend on each other"
            )
        depths.update(dict.fromkeys(call.outputs.values(), deepest + 1))

    def _check_free(self, name: str, made: Collection[str] = ()) -> None:
        if self.ledger.knows(name) or name in made:
            raise conflict(f"the variable {name!r} has a value, or a call produces it, already")

    def check_known(self, name: str) -> None:
        """Check that there is a variable. Raises Refused if not."""
        if name not in self._depths:
            raise not_found(f"variable {name!r} in this session")
