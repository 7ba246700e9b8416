"""A request for texts, checked: its prompts as tokens, and its answers, which are known at once, made-up
calls of tools among them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, TypeAlias

from stretto.emulate.answers import WrittenAnswer, ended_answer, random_source, write_words
from stretto.emulate.formed_text import formed_text, list_asked_for, list_text
from stretto.emulate.scripted_replies import ScriptedReply, takes_calls
from stretto.emulate.served_model import EmulatedModel
from stretto.emulate.tokens import Tokens, encode_chat
from stretto.wire.errors import prompt_too_long, too_many_tokens_asked, unacceptable, unknown_model
from stretto.wire.options import Options
from stretto.wire.output_form import OutputForm
from stretto.wire.paths import Api
from stretto.wire.requests import (
    DEFAULT_COMPLETION_TOKENS,
    ChatRequest,
    CompletionRequest,
    GenerateRequest,
    WirePrompt,
)
from stretto.wire.tool_calls import CallPart


def required_call(
    request: GenerateRequest, source: Random, fits: Callable[[str], bool]
) -> ScriptedReply | None:
    """Return a reply with a call of the tool that `tool_choice` names, or of any tool if it is "required";
    None if the request requires none. The arguments are valid under the tool's schema.

    Args:
        fits: whether arguments are short enough, as `formed_text` has it.

    Raises:
        RequestRefused: it requires a call of a tool that is not there, or of whose schema there is no text.
    """
    if not isinstance(request, ChatRequest):
        return None
    choice = request.extra.get("tool_choice")
    if choice in (None, "auto", "none"):
        return None
    named = _function(choice).get("name")
    functions = map(_function, request.tools)
    able = [one for one in functions if choice == "required" or one.get("name") == named]
    if not able:
        raise unacceptable("tool_choice", f"There is no tool for tool_choice {json.dumps(choice)[:200]}.")
    function = source.choice(able)
    form = OutputForm("json", function.get("parameters") or {"type": "object"})
    arguments = formed_text(form, source, fits)
    return ScriptedReply("", calls=(CallPart(0, "call_0", str(function.get("name")), arguments),))


def _function(tool: object) -> dict[str, Any]:
    """Return the function that a tool, or a choice of one, names."""
    function = tool.get("function") if isinstance(tool, dict) else None
    return function if isinstance(function, dict) else {}


AnswerTokens: TypeAlias = Callable[[Sequence[int], int], int]
"""A function from a prompt and the most tokens allowed to the number of tokens that the model would write."""

_LOOKED_AT = 256
"""Number of tokens at the end of a prompt in which a list may be asked for."""
CHAT_TOKENS = 256
"""Number of tokens of a chat's answer whose request sets no limit."""


@dataclass(frozen=True, slots=True)
class PreparedChoice:
    """One answer to one prompt of a request.

    Attributes:
        prompt: token ids of the prompt.
        echoed: text of the prompt, if it is part of the answer.
        calls: calls of tools that the answer ends with; `answer` has their tokens, and only the text before
            them as pieces.
        max_tokens: largest number of tokens of the answer.
    """

    index: int
    prompt: tuple[int, ...]
    answer: WrittenAnswer
    max_tokens: int
    echoed: str = ""
    calls: tuple[CallPart, ...] = ()


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request for texts, with all its answers."""

    api: Api
    options: Options
    choices: tuple[PreparedChoice, ...]

    @property
    def num_prompt_tokens(self) -> int:
        """Number of tokens of all prompts, each counted once."""
        return sum(len(choice.prompt) for choice in self.choices[:: self.options.n])


def as_long_as_allowed(prompt: Sequence[int], max_tokens: int) -> int:
    """Return the largest number of tokens allowed: each answer is as long as its request lets it be."""
    return max_tokens


def prepare(request: GenerateRequest, served: EmulatedModel, answer_tokens: AnswerTokens) -> PreparedRequest:
    """Check a request against the model that is served, and write its answers.

    Raises:
        RequestRefused: the model is another one, or the request does not fit it.
    """
    options = request.options
    if request.model not in ("", served.name):
        raise unknown_model(request.model, [served.name])
    if options.priority and not served.by_priority:
        raise unacceptable(
            "priority", f"Got priority {options.priority} but priority scheduling is not enabled."
        )
    is_chat = isinstance(request, ChatRequest)
    prompts = prompts_of(request, served.tokens)
    choices: list[PreparedChoice] = []
    for prompt in prompts:
        max_tokens = _max_tokens(len(prompt), options, served, is_chat=is_chat)
        echoed = ""
        if isinstance(request, CompletionRequest) and request.echo:
            wanted = request.prompts[len(choices) // options.n]
            echoed = wanted if isinstance(wanted, str) else served.tokens.decode(wanted)
        conversation = _conversation(request, len(choices) // options.n, served.tokens)
        reply = served.reply_to(conversation) or _required(request, prompt, max_tokens, served)
        calls = reply.calls if reply is not None and takes_calls(request) else ()
        for number in range(options.n):
            if reply is None:
                answer = _answer(prompt, number, max_tokens, options, served, answer_tokens)
            else:
                answer = _scripted(reply, max_tokens, options, served.tokens, calls=calls)
            choices.append(PreparedChoice(len(choices), prompt, answer, max_tokens, echoed, calls))
    return PreparedRequest("chat" if is_chat else "completions", options, tuple(choices))


def _required(
    request: GenerateRequest, prompt: tuple[int, ...], max_tokens: int, served: EmulatedModel
) -> ScriptedReply | None:
    """Return the reply to a request whose answer must call a tool; None if it need not."""

    def fits(arguments: str) -> bool:
        return len(served.tokens.cut(arguments)) <= max_tokens

    return required_call(request, random_source(served.name, prompt, 0), fits)


def _conversation(request: GenerateRequest, number: int, tokens: Tokens) -> str:
    """Return the text of prompt `number` of a request."""
    if isinstance(request, ChatRequest):
        return "\n".join(message.text for message in request.messages)
    prompt = request.prompts[number]
    return prompt if isinstance(prompt, str) else tokens.decode(prompt)


def _scripted(
    reply: ScriptedReply, max_tokens: int, options: Options, tokens: Tokens, *, calls: tuple[CallPart, ...]
) -> WrittenAnswer:
    """Return the answer of a prescribed reply. The tokens of calls count, and add no text."""
    text = reply.content if calls else reply.text
    hidden = [(token, "") for call in calls for token, _ in tokens.cut(call.name + call.arguments)]
    return ended_answer(
        [*tokens.cut(text), *hidden],
        max_tokens=max_tokens,
        stop=options.stop,
        stop_tokens=options.stop_token_ids,
    )


def prompts_of(request: GenerateRequest, tokens: Tokens) -> list[tuple[int, ...]]:
    """Return the token ids of a request's prompts. Raises RequestRefused if a message has more than text."""
    if isinstance(request, CompletionRequest):
        return [_ids(prompt, tokens) for prompt in request.prompts]
    for number, message in enumerate(request.messages):
        parts = message.content if isinstance(message.content, tuple) else ()
        if others := [part["type"] for part in parts if part["type"] != "text"]:
            raise unacceptable(f"messages.{number}", f"the model takes text alone, got {others[0]!r:.100}.")
    return [tuple(encode_chat(tokens, request.messages))]


def _ids(prompt: WirePrompt, tokens: Tokens) -> tuple[int, ...]:
    return tuple(tokens.encode(prompt)) if isinstance(prompt, str) else prompt


def _max_tokens(num_prompt: int, options: Options, served: EmulatedModel, *, is_chat: bool) -> int:
    if num_prompt >= served.max_tokens:
        raise prompt_too_long(num_prompt, served.max_tokens)
    wanted = options.max_tokens
    if wanted is None:
        wanted = served.max_tokens if is_chat else DEFAULT_COMPLETION_TOKENS
    if wanted > served.max_tokens:
        raise too_many_tokens_asked(wanted, served.max_tokens)
    allowed = min(wanted, served.max_tokens - num_prompt)
    if options.min_tokens > allowed:
        raise unacceptable(
            "min_tokens",
            f"min_tokens must be less than or equal to max_tokens={allowed}, got {options.min_tokens}.",
        )
    return allowed


def _answer(
    prompt: tuple[int, ...],
    number: int,
    max_tokens: int,
    options: Options,
    served: EmulatedModel,
    answer_tokens: AnswerTokens,
) -> WrittenAnswer:
    source, tokens = random_source(served.name, prompt, number), served.tokens
    if (text := _formed(prompt, max_tokens, options, tokens, source)) is not None:
        return ended_answer(
            tokens.cut(text), max_tokens=max_tokens, stop=options.stop, stop_tokens=options.stop_token_ids
        )
    num_tokens = max_tokens
    if not options.ignore_eos:
        limit = max_tokens if options.max_tokens is not None else min(max_tokens, CHAT_TOKENS)
        num_tokens = max(options.min_tokens, answer_tokens(prompt, limit))
    pieces = write_words(tokens, source, num_tokens, ends=num_tokens < max_tokens)
    return ended_answer(
        pieces,
        max_tokens=max_tokens,
        min_tokens=options.min_tokens,
        stop=options.stop,
        stop_tokens=options.stop_token_ids,
    )


def _formed(
    prompt: tuple[int, ...], max_tokens: int, options: Options, tokens: Tokens, source: Random
) -> str | None:
    """Return the text of an answer that must have a form; None if it may have any."""

    def fits(text: str) -> bool:
        return len(tokens.cut(text)) <= max_tokens

    if options.form is not None:
        return formed_text(options.form, source, fits)
    if options.ignore_eos:
        return None
    number = list_asked_for(tokens.decode(prompt[-_LOOKED_AT:]))
    return None if number is None else list_text(number, source, fits)
