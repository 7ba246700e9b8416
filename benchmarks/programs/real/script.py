"""What a run says, watched in virtual time: its prompts, the replies to them, and the answers of queries.

The simulated LLM writes each answer by the name of its query. An emulated server sees no names, so a run in
virtual time is watched first, and the servers reply to each prompt as the simulated LLM did.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

from stretto.emulate.scripted_replies import ScriptedReply
from stretto.model.tasks import Done
from stretto.sched.actions import Action, Admit, Reply
from stretto.sched.engine_events import LLMReport
from stretto.sched.messages import Event
from stretto.sched.observer import Observer


def digest_of(text: str) -> str:
    """Return a short text that differs for texts that differ."""
    return blake2b(text.encode(), digest_size=12).hexdigest()


@dataclass
class RunScript(Observer):
    """An observer that notes the reply to each prompt, by its digest, and the answer of each query."""

    replies: dict[str, str] = field(default_factory=dict)
    answers: dict[str, str] = field(default_factory=dict)
    _prompts: dict[int, str] = field(default_factory=dict)

    def on_action(self, action: Action, now_s: float) -> None:
        """Note a prompt, or an answer."""
        match action:
            case Admit(task=task):
                text = "".join(segment.text for segment in task.prompt)
                self._prompts[task.id] = digest_of(text)
            case Reply(query=query, outputs=outputs) if outputs is not None:
                self.answers[query] = str(outputs["answer"])

    def on_event(self, event: Event, now_s: float) -> None:
        """Note a reply."""
        if isinstance(event, LLMReport) and isinstance(event.event, Done):
            self.replies[self._prompts.pop(event.event.task)] = str(event.event.value)


@dataclass(frozen=True, slots=True)
class KnownReplies:
    """The replies of an emulated server to prompts that are known by their digests; others are made up."""

    replies: Mapping[str, str]

    def __call__(self, conversation: str) -> ScriptedReply | None:
        """Return the reply to a prompt."""
        text = self.replies.get(digest_of(conversation))
        return None if text is None else ScriptedReply("", text)
