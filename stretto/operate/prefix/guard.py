"""The machine that watches whether prompts of each kind of program begin as earlier ones did.

- **What is seen of each prompt** is its key alone: the hashes of its blocks, which the router has for its
  placement. A prompt that should begin as an earlier one of its program, or as openings of its kind, and does
  not, *loses* the blocks behind the first one that differs.
- **Texts** are looked at where a kind loses blocks: a few prompts at first, then a sample, and ever fewer
  where nothing is found. Two prompts of a kind are compared (`comparison.py`): a change before text that
  stays is evidence of a *fault*.
- **A fault** is told when it has been seen several times at the same place. What changes as a time or an id
  does, or in the order of tools or keys, is a fault wherever it is seen; other text only where most prompts
  of the kind lose by it, because a conversation may be rewritten now and then.
- **Openings** of two conversations may have text in common behind what differs, such as a file that both have
  read. Only what all of them have in common stays.

The machine is pure and needs no clock. Kinds, keys and texts that are kept are bounded; those of the kinds
that were used longest ago are forgotten first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from stretto.cluster.block_hashes import BlockHash
from stretto.cluster.prefix_hashes import HASH_BYTES, pack_hashes
from stretto.operate.prefix.comparison import LEAST_TOKENS, Change, best_match, compare
from stretto.operate.prefix.fault import NO_LOSS, Fault, Loss, ToldLoss
from stretto.operate.prefix.redaction import Rule
from stretto.operate.prefix.seen_prompt import SeenPrompt

_MAX_KINDS = 256
_MAX_LOOKED_KINDS = 16
"""Kinds of which texts are kept."""
_MAX_SAMPLES = 6
"""Prompts of a kind whose texts are kept."""
_MAX_PROGRAMS = 4096
_MAX_THREADS = 3
"""Conversations of a program that are told apart by their beginnings."""
_MAX_OPENINGS = 4
"""Openings of a kind to which another one is compared."""
_MAX_BLOCKS = 1024
"""First blocks of a prompt that are compared."""
_MAX_FAULTS = 16
"""Places of a kind at which changes are counted."""
_MAX_TOTALS = 500
_MAX_SKIPPED = 64
_SKIPPED_WHEN_TOLD = 32
"""Losing prompts between two looks, where nothing is found, at most; and at a kind whose fault is known."""
_FEW_LOOKS = 8


class PromptKind(NamedTuple):
    """What programs have in common whose prompts are compared.

    Attributes:
        owner: name of the tenant, or digest of the client's key.
        tenant: name of the tenant; "" where there are none.
        model: model that is asked, as the client names it.
        path: path that is asked.
        shape: names of the request's fields and tools, or a digest of them.
    """

    owner: str
    tenant: str
    model: str
    path: str
    shape: str


@dataclass(slots=True)
class _Kind:
    """What is known of a kind.

    Attributes:
        name: the kind.
        num_later, num_openings: requests that go on with a program, and that begin one.
        looked_at: what these were at the last look.
        skips: losing prompts to pass over between two looks; `num_skipped` were.
        followed: program of which the next losing prompt is looked at, too.
        pending: requests since the last look that have lost blocks, and their tokens.
    """

    name: PromptKind
    num_later: int = 0
    num_openings: int = 0
    num_looks: int = 0
    num_skipped: int = 0
    skips: int = 0
    followed: str = ""
    looked_at: tuple[int, int] = (0, 0)
    pending: list[int] = field(default_factory=lambda: [0, 0])
    openings: list[_Print] = field(default_factory=list)
    samples: list[SeenPrompt] = field(default_factory=list)
    faults: dict[tuple[str, str], Fault] = field(default_factory=dict)


class _Print(NamedTuple):
    """The beginning of a key.

    Attributes:
        hashes: the hashes of its first blocks, joined.
        num_blocks: number of all its blocks.
        first: the first of the hashes.
    """

    hashes: bytes
    num_blocks: int
    first: bytes

    @property
    def num_compared(self) -> int:
        """Number of the blocks that are compared."""
        return len(self.hashes) // HASH_BYTES

    def common(self, other: _Print) -> int:
        """Return how many blocks are the same, where the first ones are. As hashes are chained, all before an
        equal one are.
        """
        low, high = 0, min(self.num_compared, other.num_compared)
        while low < high:
            middle = (low + high + 1) // 2
            end = middle * HASH_BYTES
            if self.hashes[end - HASH_BYTES : end] == other.hashes[end - HASH_BYTES : end]:
                low = middle
            else:
                high = middle - 1
        return low

    def num_lost(self, other: _Print, num_common: int) -> int:
        """Return how many blocks of both stand behind the first one that differs, where so many before it are
        the same; 0 if none is known to differ.
        """
        if num_common == min(self.num_compared, other.num_compared):
            return 0
        return min(self.num_blocks, other.num_blocks) - num_common


class PrefixGuard:
    """The state machine that finds faults of prompts; see above.

    Args:
        looks_at_all: whether the texts of all prompts that lose blocks are wanted, and not of a sample.
    """

    def __init__(self, *, looks_at_all: bool = False) -> None:
        self._looks_at_all = looks_at_all
        self._kinds: OrderedDict[PromptKind, _Kind] = OrderedDict()
        self._totals: dict[tuple[str, str, Rule], Loss] = {}
        self._prints: OrderedDict[tuple[PromptKind, str], list[_Print]] = OrderedDict()

    def arrived(self, kind: PromptKind, program: str, hashes: Sequence[BlockHash], block_tokens: int) -> bool:
        """Note a prompt by the hashes of its blocks; return whether its text is wanted, by `looked`.

        Args:
            program: name of its program; "" if it has none.
        """
        found = self._kind(kind)
        packed = pack_hashes(hashes)[: _MAX_BLOCKS * HASH_BYTES]
        begin = _Print(packed, len(hashes), packed[:HASH_BYTES])
        num_lost = self._lost_blocks(found, program, begin)
        if num_lost * block_tokens < LEAST_TOKENS:
            return False
        found.pending[0] += 1
        found.pending[1] += num_lost * block_tokens
        if self._looks_at_all or (program and found.followed == program):
            return True
        if found.num_skipped < found.skips:
            found.num_skipped += 1
            return False
        found.num_skipped = 0
        return True

    def _kind(self, kind: PromptKind) -> _Kind:
        found = self._kinds.get(kind)
        if found is None:
            found = self._kinds[kind] = _Kind(kind)
            if len(self._kinds) > _MAX_KINDS:
                self._kinds.popitem(last=False)
        else:
            self._kinds.move_to_end(kind)
        return found

    def _lost_blocks(self, found: _Kind, program: str, begin: _Print) -> int:
        """Return how many blocks of an earlier prompt a prompt should begin with and does not."""
        key = found.name, program
        threads = self._prints.get(key) if program else None
        if threads is None:
            found.num_openings += 1
            others, found.openings = found.openings, [*found.openings[1 - _MAX_OPENINGS :], begin]
            if program:
                self._prints[key] = [begin]
                if len(self._prints) > _MAX_PROGRAMS:
                    self._prints.popitem(last=False)
        else:
            found.num_later += 1
            others = threads
            self._prints.move_to_end(key)
        best, num_common = None, -1
        first = begin.first
        for other in others:
            num = begin.common(other) if other.first == first else 0
            if num > num_common:
                best, num_common = other, num
        if best is None:
            return 0
        if threads is not None:
            if 2 * num_common >= best.num_compared or len(threads) >= _MAX_THREADS:
                threads.remove(best)
            threads.append(begin)
        return begin.num_lost(best, num_common)

    def looked(self, kind: PromptKind, prompt: SeenPrompt, token_s: float = 0.0) -> ToldLoss | None:
        """Look at the text of a prompt that was wanted; return what was lost by the fault that it has, if
        that is known well enough.

        Args:
            token_s: seconds of the prefill of a token.
        """
        found = self._kinds.get(kind)
        if found is None:
            return None
        if not found.samples:
            self._make_room()
        other = best_match(prompt, found.samples)
        found.samples = [*found.samples[1 - _MAX_SAMPLES :], prompt]
        found.num_looks += 1
        (num_requests, num_tokens), found.pending = found.pending, [0, 0]
        found.looked_at = found.num_later, found.num_openings
        found.followed = "" if found.followed == prompt.program else prompt.program
        compared = None if other is None else compare(other, prompt)
        if compared is None or (change := compared.change) is None or change.lost_tokens < LEAST_TOKENS:
            few = found.num_looks < _FEW_LOOKS or (compared is not None and compared.change is not None)
            found.skips = 0 if few else min(_MAX_SKIPPED, max(1, 2 * found.skips))
            return None
        fault = self._fault(found, change, prompt.program)
        num_tokens = min(num_tokens, num_requests * change.lost_tokens)
        loss = Loss(num_requests, num_tokens, num_tokens * token_s)
        fault.add(change, loss, is_opening=not compared.is_same_conversation)
        found.skips = _SKIPPED_WHEN_TOLD if fault.num_seen >= _FEW_LOOKS else 0
        if not fault.is_told(*found.looked_at):
            return None
        told = fault.tell()
        self._count(kind, fault.rule, told)
        return ToldLoss(fault, told)

    def _count(self, kind: PromptKind, rule: Rule, loss: Loss) -> None:
        key = (kind.tenant, kind.model, rule)
        if key not in self._totals and len(self._totals) >= _MAX_TOTALS:
            key = ("", "other", rule)
        self._totals[key] = self._totals.get(key, NO_LOSS).plus(loss)

    def totals(self) -> Mapping[tuple[str, str, Rule], Loss]:
        """Return what was lost by faults, by tenant, model and rule."""
        return self._totals

    def _fault(self, kind: _Kind, change: Change, program: str) -> Fault:
        """Return the changes at a place of a kind's prompts."""
        what = change.rule if change.rule.startswith(("order", "set")) else "value"
        key = (change.place, what)
        if (fault := kind.faults.get(key)) is None:
            if len(kind.faults) >= _MAX_FAULTS:
                least = min(kind.faults, key=lambda one: kind.faults[one].num_seen)
                del kind.faults[least]
            fault = kind.faults[key] = Fault(change)
        fault.program = program or fault.program
        return fault

    def _make_room(self) -> None:
        """Forget texts of the kind that was used longest ago, if too many kinds have some."""
        looked_at = [kind for kind in self._kinds.values() if kind.samples]
        if len(looked_at) >= _MAX_LOOKED_KINDS:
            looked_at[0].samples = []

    def faults(self) -> Iterator[tuple[PromptKind, Fault]]:
        """Yield the faults for which there is enough evidence."""
        for name, kind in self._kinds.items():
            yield from ((name, fault) for fault in kind.faults.values() if fault.is_told(*kind.looked_at))

    @property
    def num_texts(self) -> int:
        """Number of prompts whose texts are kept."""
        return sum(len(kind.samples) for kind in self._kinds.values())

    @property
    def num_kinds(self) -> int:
        """Number of kinds that are known."""
        return len(self._kinds)
