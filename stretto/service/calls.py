"""The calls of a request as calls of semantic functions, operators and apps."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from stretto.apps.template import Template
from stretto.model.errors import ConfigError, TemplateError, UserError
from stretto.programs.app_function import App
from stretto.programs.conversations import Conversation
from stretto.programs.fragment import Work
from stretto.programs.function import Function
from stretto.programs.operators import Operator, operator_named
from stretto.programs.outputs import Input, Output
from stretto.service.apps.settings import checked_settings
from stretto.service.bodies import decoded
from stretto.service.prompt_room import PromptRoom
from stretto.service.schema import CallBody, Placeholder

_MAX_KNOWN = 4096
_MAX_CHARS = 32_000_000
_MAX_PLACES = 1000
"""Largest number of placeholders of one call, and of places in its prompt, each use counted."""
_MAX_OUTPUTS = 256
_MAX_PLACES_BEFORE = 40_000
"""Largest number of places before the outputs of one prompt, added up: each output has all text before it as
its own prompt.
"""
_MAX_SETTINGS_BYTES = 100_000
"""Largest size of the settings of a call or of one output, and of the transforms at a placeholder."""
_MOST = 2**63 - 1
_ANYTHING = msgspec.json.Decoder(Any)

_Key: TypeAlias = tuple[object, ...]


class Works:
    """A cache of works (functions, operators and apps that calls name), made from requests and kept for
    later ones that ask for the same. Any thread may use it.

    Args:
        check: called once for each new one, to check that it can run.
        apps: templates that calls may name.
        room: how long prompts may be.
    """

    def __init__(self, check: Callable[[Work], None], apps: Mapping[str, Template], room: PromptRoom) -> None:
        self.room = room
        self._check = check
        self._apps = apps
        self._known: OrderedDict[_Key, Work] = OrderedDict()
        self._num_chars = 0
        self._adding = threading.Lock()

    def known(self, call: CallBody) -> Work | None:
        """Return what a call calls, if it is at hand."""
        return self._known.get(_key(call))

    def find(self, call: CallBody) -> Work:
        """Return what a call calls.

        Raises:
            UserError: the call does not fit its prompt, or names what does not exist.
        """
        key = _key(call)
        if (work := self._known.get(key)) is not None:
            return work
        _check_sizes(call)
        work = self._made(call)
        self._check(work)
        with self._adding:
            if key not in self._known:
                self._num_chars += _num_chars(work)
            self._known[key] = work
            while len(self._known) > _MAX_KNOWN or self._num_chars > _MAX_CHARS:
                _, oldest = self._known.popitem(last=False)
                self._num_chars -= _num_chars(oldest)
        return work

    def _made(self, call: CallBody) -> Work:
        match call:
            case CallBody(prompt=str(), operator=msgspec.UNSET, app=msgspec.UNSET):
                return _function(call)
            case CallBody(prompt=msgspec.UNSET, operator=str(name), app=msgspec.UNSET):
                return _operator(name, call)
            case CallBody(prompt=msgspec.UNSET, operator=msgspec.UNSET, app=str(name)):
                return self._app(name, call)
        raise TemplateError("a call has either a prompt, or an operator, or an app")

    def _app(self, name: str, call: CallBody) -> App:
        if name not in self._apps:
            raise ConfigError(f"there is no app {name!r:.80}; there are {', '.join(self._apps) or 'none'}")
        template = self._apps[name]
        app = App(template, checked_settings(template, _settings(call.settings, name)))
        _check_once(name, call.placeholders)
        app.check_inputs([place.name for place in call.placeholders if not place.in_out])
        if unknown := [place for place in call.placeholders if place.in_out and place.name not in app.ports]:
            raise TemplateError(
                f"{name} has no output {unknown[0].name!r:.80}; it has {', '.join(app.ports)}"
            )
        if call.each is not None or any(place.transforms for place in call.placeholders):
            raise TemplateError(f"{name}: an app has no transforms, and is not applied to each item")
        return app


def _key(call: CallBody) -> _Key:
    """Return what a call's work depends on: all but variables and values."""
    form = call.conversation
    return (
        call.prompt,
        call.operator,
        call.app,
        call.function,
        call.engine,
        call.each,
        bytes(call.settings),
        None if form is None else (form.system, form.user, form.assistant, form.end),
        *((p.name, p.in_out, p.transforms, bytes(p.settings)) for p in call.placeholders),
    )


def _check_sizes(call: CallBody) -> None:
    """Check that a call is not so large that reading it or compiling its graph takes long.

    Raises:
        TemplateError: it has too many placeholders, or too long settings or transforms.
    """
    name = call.function
    prompt = call.prompt if isinstance(call.prompt, str) else ""
    num_places = max(len(call.placeholders), prompt.count("{{") - 2 * prompt.count("{{{{"))
    if num_places > _MAX_PLACES:
        raise TemplateError(f"{name}: there are {num_places} placeholders; at most {_MAX_PLACES} are allowed")
    if (num_outputs := sum(place.in_out for place in call.placeholders)) > _MAX_OUTPUTS:
        raise TemplateError(f"{name}: there are {num_outputs} outputs; at most {_MAX_OUTPUTS} are allowed")
    if num_outputs * (num_places - num_outputs / 2) > _MAX_PLACES_BEFORE:
        raise TemplateError(
            f"{name}: there are {num_outputs} outputs among {num_places} placeholders; before the outputs "
            f"may stand at most {_MAX_PLACES_BEFORE}, counted for each"
        )
    for place in call.placeholders:
        chain = place.transforms
        num_chars = len(chain) if isinstance(chain, str) else sum(len(step) + 1 for step in chain)
        for what, size in (("transforms", num_chars), ("settings", len(bytes(place.settings)))):
            if size > _MAX_SETTINGS_BYTES:
                raise TemplateError(
                    f"{name}, {place.name}: the {what} have {size} characters; at most "
                    f"{_MAX_SETTINGS_BYTES} are allowed"
                )
    if (size := len(bytes(call.settings))) > _MAX_SETTINGS_BYTES:
        raise TemplateError(
            f"{name}: the settings have {size} bytes; at most {_MAX_SETTINGS_BYTES} are allowed"
        )


def _num_chars(work: Work) -> int:
    return len(work.prompt) if isinstance(work, Function) else 0


def _function(call: CallBody) -> Function:
    assert isinstance(call.prompt, str)
    name = call.function
    _check_once(name, call.placeholders)
    if bytes(call.settings) != b"{}":
        raise ConfigError(f"{name}: the settings of a prompt stand at its outputs")
    inputs: dict[str, Input | None] = {}
    outputs: dict[str, Output] = {}
    for place in call.placeholders:
        if place.in_out:
            settings = _settings(place.settings, f"{name}, {place.name}")
            outputs[place.name] = Output(transform=place.transforms, **settings)
        else:
            inputs[place.name] = Input(transform=place.transforms) if place.transforms else None
    form = call.conversation
    conversation = None
    if form is not None:
        conversation = Conversation(form.system, form.user, form.assistant, form.end)
    found = Function.of_prompt(
        name, call.prompt, inputs, outputs, engine=call.engine, conversation=conversation
    )
    if missing := [output for output in found.outputs if output not in outputs]:
        raise TemplateError(f"{name}: there is no placeholder for the output {missing[0]!r}")
    if call.each is not None:
        found.check_each(call.each)
    return found


def _operator(name: str, call: CallBody) -> Operator:
    _check_once(name, call.placeholders)
    if call.each is not None:
        raise TemplateError(f"{name}: an operator is not applied to each item")
    made = operator_named(name, _settings(call.settings, name))
    inputs = [place.name for place in call.placeholders if not place.in_out]
    outputs = [place.name for place in call.placeholders if place.in_out]
    if outputs != list(made.ports) or any(place.transforms for place in call.placeholders):
        raise TemplateError(f"{name}: the outputs are {', '.join(made.ports)}, and have no transforms")
    made.check_inputs(inputs)
    return made


def _check_once(name: str, placeholders: tuple[Placeholder, ...]) -> None:
    seen: set[str] = set()
    for place in placeholders:
        if place.name in seen:
            raise TemplateError(f"{name}: there are two placeholders {place.name!r:.80}")
        seen.add(place.name)


def _settings(raw: msgspec.Raw, where: str) -> dict[str, Any]:
    """Return settings, which were skipped and not read when the body was decoded."""
    found = decoded(_ANYTHING, bytes(raw))
    if not isinstance(found, dict):
        raise UserError(f"{where}: the settings must be an object")
    _check_integers(found, where)
    return found


def _check_integers(value: object, where: str) -> None:
    """Check that no integer is so large that arithmetic with floats fails. Raises ConfigError."""
    match value:
        case int() if abs(value) > _MOST:
            raise ConfigError(f"{where}: a setting is an integer beyond 64 bits: {value!s:.40}")
        case list():
            for item in value:
                _check_integers(item, where)
        case dict():
            for item in value.values():
                _check_integers(item, where)
