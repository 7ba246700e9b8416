"""Keys of prompts: the chained hashes of their blocks, by which prompts are looked up in the caches of
instances.

Instances whose caches use the same tokenizer and block length share a space, and a prompt has one key in each
space. Where an instance reports what its cache holds, its space consists of token blocks, with the hashes
that the reports have. Elsewhere blocks of UTF-8 bytes stand for tokens: equal text then has equal keys, and
what an instance may hold is only known from the requests sent to it.

Keys only serve to choose the instance of a request. A wrong key costs time and never changes an answer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from stretto.cluster.block_hashes import BlockHash, Hasher
from stretto.cluster.messages import InstanceId
from stretto.cluster.placement import KeyUse
from stretto.cluster.placement_request import PromptKey
from stretto.cluster.prefix_hashes import PrefixHasher, salted_root
from stretto.model.errors import UserError
from stretto.model.replica import Replica
from stretto.model.values import Prompt

_BLOCK_BYTES = 256
_BYTES_PER_TOKEN = 4
_HASHER = PrefixHasher(_BLOCK_BYTES // _BYTES_PER_TOKEN)
_NO_KEYS: Mapping[str, PromptKey] = MappingProxyType({})
_MAX_KEPT = 1024
"""Keys that are kept: a request is placed more than once, and many prompts are sent again."""


@dataclass(frozen=True, slots=True)
class PromptSpace:
    """A way to cut prompts into blocks and to hash these, so that prompts can be looked up in the caches of
    instances.

    Instances with the same tokenizer and block length share one space.

    Attributes:
        name: names the tokenizer and the block length. Spaces of equal names are the same.
        block_tokens: tokens of a block.
        hashes: function that returns the chained hashes of the full blocks of a tenant's prompt. Raises
            UserError if the prompt is no text.
    """

    name: str
    block_tokens: int
    hashes: Callable[[Prompt, str], Sequence[BlockHash]]


def token_space(name: str, block_tokens: int, encode: Callable[[Prompt], Sequence[int]]) -> PromptSpace:
    """Return the `PromptSpace` of our own prefix caches: the way in which they cut prompts into blocks of
    tokens and hash these.

    Args:
        encode: function that returns the tokens of a prompt. Raises UserError if the prompt is no text.
    """
    hasher = Hasher(block_tokens)

    def hashes(prompt: Prompt, tenant: str) -> Sequence[BlockHash]:
        found: list[BlockHash] = []
        hasher.extend(found, tenant, encode(prompt))
        return found

    return PromptSpace(f"{name}/{block_tokens}", block_tokens, hashes)


SpaceOf: TypeAlias = Callable[[str, Replica], PromptSpace | None]
"""Returns the space in which instances of an engine's replica report what they hold; None if they do not."""


class PromptKeys:
    """Computes the keys of prompts (the hashes of their blocks), by which a placement policy
    sees which instance holds a prompt's beginning in its cache.

    A prompt has one key for each space, that is for each tokenizer and block length among the engine's
    instances.

    Args:
        engine: name of the engine.
        uses: which keys the engine's placement policy reads: "never", only where instances report their
            caches ("reported"), or "always".
        space_of: function that returns the space of a replica; called when an instance joins.
    """

    def __init__(self, engine: str, uses: KeyUse, space_of: SpaceOf) -> None:
        self._engine = engine
        self._uses = uses
        self._space_of = space_of
        self._spaces: dict[InstanceId, PromptSpace] = {}
        self._by_name: dict[str, PromptSpace] = {}
        self._kept: OrderedDict[tuple[str, str, Prompt], PromptKey] = OrderedDict()

    def join(self, instance: InstanceId, replica: Replica) -> str:
        """Add an instance that serves, so that prompts get keys for its cache; return the name of its space.

        The name is "" if prompts get no key for this instance.
        """
        if self._uses == "never":
            return ""
        space = self._space_of(self._engine, replica)
        if space is None and self._uses == "always":
            space = BYTES
        if space is None:
            return ""
        self._spaces[instance] = space
        return self._by_name.setdefault(space.name, space).name

    @property
    def has_spaces(self) -> bool:
        """Whether prompts have keys, as some instance has a space."""
        return bool(self._by_name)

    def leave(self, instance: InstanceId) -> None:
        """Remove an instance that takes no more work.

        When no other instance has the same tokenizer and block length, keys for these are no longer computed.
        """
        if self._spaces.pop(instance, None) is not None:
            self._by_name = {space.name: space for space in self._spaces.values()}

    def of(self, prompt: Prompt, tenant: str) -> Mapping[str, PromptKey]:
        """Return the keys of a prompt of a tenant, one for each space
        that an instance has, by the space's name.
        """
        if not self._by_name:
            return _NO_KEYS
        return {name: self._key(space, prompt, tenant) for name, space in self._by_name.items()}

    def _key(self, space: PromptSpace, prompt: Prompt, tenant: str) -> PromptKey:
        identity = space.name, tenant, prompt
        key = self._kept.pop(identity, None) or _compute_key(space, prompt, tenant)
        self._kept[identity] = key
        if len(self._kept) > _MAX_KEPT:
            self._kept.popitem(last=False)
        return key


def _compute_key(space: PromptSpace, prompt: Prompt, tenant: str) -> PromptKey:
    """Return the key of a prompt, without blocks if it is no text: its instance will refuse it."""
    try:
        return PromptKey(space.hashes(prompt, tenant), space.block_tokens)
    except UserError:
        return PromptKey((), space.block_tokens)


def hash_text(text: str, tenant: str) -> Sequence[BlockHash]:
    """Return the hashes of the blocks of bytes of a tenant's text."""
    return _HASHER.hash_buffer(text.encode("utf-8", "surrogatepass"), salted_root(tenant))


def _hash_prompt(prompt: Prompt, tenant: str) -> Sequence[BlockHash]:
    try:
        text = "".join([text for segment in prompt for text in (segment.role or "", segment.text)])
    except TypeError as error:
        raise UserError("a segment of the prompt is no text") from error
    return hash_text(text, tenant)


BYTES = PromptSpace("bytes", _BLOCK_BYTES // _BYTES_PER_TOKEN, _hash_prompt)
"""The space of instances that report nothing: blocks of bytes, each counted as so many tokens."""


def bytes_key(prompt: Prompt, tenant: str) -> PromptKey:
    """Return the key of a prompt in the space of blocks of bytes."""
    return _compute_key(BYTES, prompt, tenant)


def no_space(engine: str, replica: Replica) -> None:
    """Return None for every replica: the `space_of` function for engines whose instances do not report what
    their caches hold.
    """


def prompt_space(engine: str, replica: Replica) -> PromptSpace | None:
    """Return the rule by which the instances of a replica turn a prompt into hashes of
    the KV blocks they cache.

    The hashes are those with which they report what they have cached; None if they report nothing. The
    executable's own `prompt_space` makes the rule for the replica's configuration.

    Raises:
        ConfigError: the tokenizer cannot be used.
    """
    says = getattr(replica.executable, "prompt_space", None)
    space: PromptSpace | None = None if says is None else says(replica.instance_config())
    return space
