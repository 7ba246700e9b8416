"""What is known of the beginnings of a server's replies: whether thoughts come without their opening tag.

A server that applies a chat template may put the opening tag of the model's thoughts into the prompt
(`llm/output/thoughts.py`). Only replies tell so, and text that was passed on cannot be taken back.
So a reply is held back to its end where it may begin with thoughts, and that costs little:

- a text that nobody reads before its end, always;
- a list in a chat, until a reply has told;
- a text in a chat that is read as it comes, until a reply has told, if the model's name is one of those whose
  templates do so. A reply of another model that turns out to begin so is text; those after it are not.

Prompts of completions are mostly not put into a template.
"""

from __future__ import annotations

import logging
import re

from stretto.llm.output.output import DecodeOutput
from stretto.llm.output.thoughts import Opening, Thoughts
from stretto.wire.paths import Api

_log = logging.getLogger(__name__)
_THINKERS = re.compile(r"\br1\b|qwq|glm-z1|nemotron|think|reason", re.IGNORECASE)
"""Parts of names of models whose chat templates open thoughts: DeepSeek-R1 and its distillates, QwQ, GLM-Z1,
Nemotron Nano, Qwen3-Thinking and others that name it."""


class ReplyOpenings:
    """A record of how the replies of one server begin.

    Args:
        api: the API that is used.
        model: name of the model.
    """

    def __init__(self, api: Api, model: str) -> None:
        self._is_chat = api == "chat"
        self._is_thinker = _THINKERS.search(model) is not None
        self._lacks_opening: bool | None = None

    def of_next(self, *, is_list: bool, is_read: bool) -> Opening:
        """Return what to expect of a reply.

        Args:
            is_list: whether a list is asked for, which ends the reply.
            is_read: whether somebody reads parts of the reply before its end.
        """
        if self._lacks_opening:
            return "likely"
        if not is_list and not is_read:
            return "maybe"
        may_wait = self._is_chat and self._lacks_opening is None
        return "maybe" if may_wait and (is_list or self._is_thinker) else "none"

    def observe(self, output: DecodeOutput, value: object, *, has_reasoning: bool) -> None:
        """Learn from a reply that has ended, with what its value is.

        Args:
            has_reasoning: whether the server has told thoughts apart from the answer by itself.
        """
        if output.lacked_opening:
            self._lacks_opening = True
        elif isinstance(value, str) and not self._lacks_opening and _began_with_thoughts(value):
            self._lacks_opening = True
            _log.warning("a reply seems to have begun with thoughts; later ones are read without them")
        elif self._lacks_opening is None and (
            has_reasoning or output.has_thoughts or output.finish_reason == "stop"
        ):
            self._lacks_opening = False


def _began_with_thoughts(text: str) -> bool:
    """Return whether a text that was passed on has the closing tag of thoughts without an opening one."""
    thoughts = Thoughts("maybe")
    thoughts.feed(text)
    thoughts.finish(is_cut=False)
    return thoughts.lacked_opening
