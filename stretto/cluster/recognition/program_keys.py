"""The keys that lead to programs, and how much of them each tenant has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from stretto.cluster.recognition.fingerprints import Key
from stretto.cluster.recognition.recognised_program import RecognisedProgram, TenantPrograms

_MOST_SHARED = 8
"""Programs that one key may lead to. The oldest are not found by it any more."""
_NUM_PARTS = 251
"""Parts of the dict of keys, by their remainders: a dict that grows is copied, which would take tens of
milliseconds if there was only one."""


class TenantWeights:
    """Tenants by the number of their programs and keys, in classes of powers of two.

    Attributes:
        weight: sum of all.
    """

    def __init__(self) -> None:
        self.weight = 0
        self._by_weight: list[dict[TenantPrograms, None]] = [{} for _ in range(64)]

    def add(self, tenant: TenantPrograms, more: int) -> None:
        """Change the weight of a tenant."""
        before, tenant.weight = tenant.weight.bit_length(), tenant.weight + more
        self.weight += more
        if (after := tenant.weight.bit_length()) != before:
            self._by_weight[before].pop(tenant, None)
            self._by_weight[after][tenant] = None

    def forget(self, tenant: TenantPrograms) -> None:
        """Forget a tenant without programs."""
        self._by_weight[tenant.weight.bit_length()].pop(tenant, None)

    def heaviest(self) -> TenantPrograms:
        """Return a tenant of the class of those that have most."""
        return next(iter(next(one for one in reversed(self._by_weight) if one)))

    def check_invariants(self, tenants: Iterable[TenantPrograms]) -> None:
        """Check that these are the tenants, each in its class. For tests."""
        known = list(tenants)
        assert all(one in self._by_weight[one.weight.bit_length()] for one in known)
        assert sum(map(len, self._by_weight)) == len(known)
        assert self.weight == sum(one.weight for one in known)


class ProgramKeys:
    """What each key leads to. A key counts in the weight of its program's tenant."""

    def __init__(self, weights: TenantWeights) -> None:
        self._weights = weights
        self._parts: tuple[dict[Key, RecognisedProgram | list[RecognisedProgram]], ...] = tuple(
            {} for _ in range(_NUM_PARTS)
        )

    def of(self, key: Key, tenant: str) -> list[RecognisedProgram]:
        """Return the programs of a tenant that a key leads to, the oldest first."""
        found = self._parts[key % _NUM_PARTS].get(key)
        if found is None:
            return []
        programs = found if isinstance(found, list) else [found]
        return [one for one in dict.fromkeys(programs) if one.tenant.name == tenant]

    def known(self, keys: Iterable[Key]) -> Iterator[Key]:
        """Return those of some keys that lead to programs of any tenant, of which most lead to none."""
        parts = self._parts
        return (key for key in keys if key in parts[key % _NUM_PARTS])

    def link(self, key: Key, program: RecognisedProgram) -> None:
        """Let a key lead to a program."""
        part = self._parts[key % _NUM_PARTS]
        found = part.get(key)
        self._weights.add(program.tenant, 1)
        if found is None:
            part[key] = program
        elif isinstance(found, list):
            found.append(program)
            del found[:-_MOST_SHARED]
        else:
            part[key] = [found, program]

    def unlink(self, key: Key, program: RecognisedProgram) -> None:
        """Let a key lead to a program no more."""
        part = self._parts[key % _NUM_PARTS]
        found = part.get(key)
        self._weights.add(program.tenant, -1)
        if found is program:
            del part[key]
        elif isinstance(found, list) and program in found:
            found.remove(program)
            if len(found) == 1:
                part[key] = found[0]

    def check_invariants(self) -> None:
        """Check that keys and programs agree. For tests."""
        for key, found in chain.from_iterable(part.items() for part in self._parts):
            programs = found if isinstance(found, list) else [found]
            assert 1 <= len(programs) <= _MOST_SHARED
            assert all(key in one.keys() and one in one.tenant for one in programs)  # noqa: SIM118
