"""Token ids of chats, by the chat template of the workers' model.

The whole rendered text becomes token ids. Added tokens of a vocabulary, such as the one that begins a
message, cut a text before anything else is done with it: ids before such a token do not depend on what
follows it. So a chat that goes on from one that is known has its new end tokenised alone.
"""

from __future__ import annotations

import re
import threading
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

from stretto.model.errors import ConfigError
from stretto.router.chats import PROBE_CHAT, Chat, chat_of

_MAX_COST = 8_000_000
"""Token ids that are kept of all chats; each beginning by which they are found counts as `_CUT_COST`."""
_CUT_COST = 64


def has_template(folder: Path) -> bool:
    """Return whether there is a chat template in a model's directory."""
    config = folder / "tokenizer_config.json"
    in_config = config.is_file() and b'"chat_template"' in config.read_bytes()
    return in_config or (folder / "chat_template.jinja").is_file()


class ChatTokens:
    """The chat template and the vocabulary in a model's directory. Threads may share it.

    Args:
        folder: directory with the model's `tokenizer.json` and its chat template.

    Attributes:
        probe: token ids of `PROBE_CHAT`.

    Raises:
        ConfigError: they cannot be loaded, or the template refuses `PROBE_CHAT`.
    """

    def __init__(self, folder: Path) -> None:
        from stretto.engines.prompt_tokens import load_tokenizer

        try:
            tokenizer = load_tokenizer(folder)
            self._template, self._tokenizer = tokenizer.apply_chat_template, tokenizer.backend_tokenizer
            self._tokenizer.no_truncation()
            self._tokenizer.no_padding()
            self._added = {
                token.content: id_
                for id_, token in tokenizer.added_tokens_decoder.items()
                if not (token.normalized or token.single_word) and id_ != tokenizer.unk_token_id
            }
            self._cut_ids = frozenset(self._added.values())
            longest_first = sorted(filter(None, self._added), key=len, reverse=True)
            self._cuts = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
            self._known = _KnownChats(_MAX_COST)
            probe = chat_of("/chat/completions", PROBE_CHAT)
            assert probe is not None
            self.probe = list(self.ids_of(probe))
        except Exception as error:  # templates are programs, and loaders raise what they like
            raise ConfigError(f"cannot use the chat template in {folder}: {error!r:.300}") from error

    def ids_of(self, chat: Chat) -> array[int]:
        """Return the token ids of a chat.

        Raises:
            Exception: it has more than text, or the template refuses it.
        """
        return self.ids_of_text(self.render(chat))

    def render(self, chat: Chat) -> str:
        """Return the text that the template makes of a chat. Raises as `ids_of` does."""
        messages, tools = chat.prepared_messages(), chat.prepared_tools()
        return str(self._template(messages, tools=tools, tokenize=False, **chat.kwargs))

    def ids_of_text(self, text: str) -> array[int]:
        """Return the token ids of a rendered text, of which only the end is tokenised that is not known."""
        digest, end = blake2b(digest_size=16), 0
        starts, digests, cut_ids = list[int](), list[bytes](), list[int]()
        for match in self._cuts.finditer(text):
            digest.update(text[end : match.end()].encode("utf-8", "surrogatepass"))
            end = match.end()
            starts.append(match.start())
            digests.append(digest.digest())
            cut_ids.append(self._added[match.group()])
        number, ids, places = self._known.longest(digests)
        rest = self._tokenizer.encode(text[starts[number] :] if ids else text, add_special_tokens=False).ids
        new_places = [len(ids) + place for place, id_ in enumerate(rest) if id_ in self._cut_ids]
        ids, places = ids + array("I", rest), [*places, *new_places]
        if [ids[place] for place in places] == cut_ids:  # else the tokenizer has cut in other places
            self._known.add(digests, ids, places)
        return ids


class _KnownChats:
    """The token ids of the last chats, found by the beginnings that end with an added token.

    Args:
        max_cost: most token ids and beginnings, as `_MAX_COST` counts them.
    """

    def __init__(self, max_cost: int) -> None:
        self._max_cost, self._cost = max_cost, 0
        self._chats: OrderedDict[bytes, tuple[Sequence[bytes], array[int], Sequence[int]]] = OrderedDict()
        self._found: dict[bytes, bytes] = {}  # the chat that begins so
        self._lock = threading.Lock()

    def longest(self, digests: Sequence[bytes]) -> tuple[int, array[int], list[int]]:
        """Return the number of the last beginning that is known, the ids before its last token, and the
        places of added tokens among them; no ids if none is known.
        """
        with self._lock:
            for number in range(len(digests) - 1, 0, -1):
                if (name := self._found.get(digests[number])) is not None:
                    self._chats.move_to_end(name)
                    _, ids, places = self._chats[name]
                    return number, ids[: places[number]], list(places[:number])
        return 0, array("I"), []

    def add(self, digests: Sequence[bytes], ids: array[int], places: Sequence[int]) -> None:
        """Keep a chat in place of those of which it is the continuation, and forget the oldest ones."""
        if not digests or (cost := len(ids) + _CUT_COST * len(digests)) > self._max_cost:
            return
        name = digests[-1]
        with self._lock:
            for digest in digests:
                if digest in self._chats:
                    self._forget(digest)
            self._chats[name] = digests, ids, places
            self._found.update(dict.fromkeys(digests, name))
            self._cost += cost
            while self._cost > self._max_cost:
                self._forget(next(iter(self._chats)))

    def _forget(self, name: bytes) -> None:
        digests, ids, _ = self._chats.pop(name)
        self._cost -= len(ids) + _CUT_COST * len(digests)
        for digest in digests:
            if self._found.get(digest) == name:
                del self._found[digest]
