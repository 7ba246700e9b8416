"""What a server cannot do with chats, as it says by refusing them.

A server may have no chat at all, or a model without a chat template. Some templates take no system message.
"""

from __future__ import annotations

import re

from stretto.model.errors import BadReply, NotFound

_NO_CHAT = re.compile(r"chat[ _-]?template|not support chat|not a chat model", re.IGNORECASE)
_NO_SYSTEM = re.compile(r"system[ _-]?(role|message|prompt|instruction)|role.{0,20}\bsystem\b", re.IGNORECASE)


def says_no_chat(error: BadReply) -> bool:
    """Return whether the refusal of a chat says that the server has no chat for its model."""
    return isinstance(error, NotFound) or (
        error.is_refusal and _NO_CHAT.search(error.message) is not None and not says_no_system(error)
    )


def says_no_system(error: BadReply) -> bool:
    """Return whether the refusal of a chat is about its system message."""
    return error.is_refusal and _NO_SYSTEM.search(error.message) is not None
