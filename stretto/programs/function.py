"""Semantic functions: Python functions whose docstring is a prompt, executed by an LLM.

Source: Parrot §4.1. Differs: an output may stand anywhere and has settings of its own; values are data and
are never parsed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from copy import copy
from typing import Any, overload

from stretto.graph.graph import Arg, Ref
from stretto.model.errors import ConfigError, TemplateError, UserError
from stretto.model.tasks import Decode
from stretto.programs.conversations import Conversation
from stretto.programs.fragment import Build, Form
from stretto.programs.function_steps import CallSteps
from stretto.programs.operators import TRANSFORMS
from stretto.programs.output_types import output_types
from stretto.programs.outputs import Input, Output
from stretto.programs.places import check_places, declared_in, input_signature, with_kinds
from stretto.programs.prompt_text import PromptSlot, dedent, parse
from stretto.programs.variable import SemanticVariable, needed_client
from stretto.transforms.annotations import Typed


class Function:
    """A semantic function: its docstring is a prompt with placeholders, and calling it submits a call to the
    LLM.

        @semantic_function
        def write_code(task: SemanticVariable) -> None:
            \"\"\"You are an expert engineer. Write Python code of {{input:task}}. Code: {{output:code}}\"\"\"

        code = write_code("a snake game")

    Arguments are variables, or Python values, which are data. A call returns the variable of its output; a
    tuple of them if there are several. A variable for an output may be given by keyword. `when=` names a
    variable without whose value the call is skipped. The body of the Python function is not executed.

    Args:
        function: the Python function. Parameters whose default is an `Output` are outputs, all others inputs.
        engine: name of the LLM engine.
        conversation: form of conversation that the prompt is put into; None for none.
        settings: settings of all outputs, those of `Output`.

    Attributes:
        parts: the constants and places of the prompt.
        engines: the engines that a call needs, and the kind of each.

    Raises:
        TemplateError: the prompt does not fit the parameters; the message names the place.
        ConfigError: a setting is unknown, or its value cannot be used.
    """

    def __init__(
        self,
        function: Callable[..., object],
        *,
        engine: str = "llm",
        conversation: Conversation | None = None,
        **settings: object,
    ) -> None:
        self.name = getattr(function, "__name__", "")
        self.__doc__ = function.__doc__
        if not self.name or not function.__doc__:
            raise TemplateError(
                f"{self.name or repr(function)}: a semantic function needs a docstring, its prompt"
            )
        self.engine, self.conversation = engine, conversation
        declared = declared_in(function, Output)
        signature = input_signature(function, declared)
        self._types: Mapping[str, Typed] = {}
        self._read(dedent(function.__doc__), signature, declared_in(function, Input), declared, settings)
        self._types = output_types(function, tuple(self.outputs))
        if self._types:
            try:
                typed = {
                    name: one.of_type(self._types[name]) if name in self._types else one
                    for name, one in self.outputs.items()
                }
            except ConfigError as error:
                raise ConfigError(f"{self.name}: {error.message}") from error
            self._set_outputs(typed)

    @classmethod
    def of_prompt(
        cls,
        name: str,
        prompt: str,
        inputs: Mapping[str, Input | None],
        outputs: Mapping[str, Output],
        *,
        engine: str = "llm",
        conversation: Conversation | None = None,
    ) -> Function:
        """Return the semantic function of a prompt, whose white space stays as it is.

        Raises:
            TemplateError: the prompt does not fit the inputs and outputs, or one of these has no usable name.
            ConfigError: a setting is unknown, or its value cannot be used.
        """
        made = cls.__new__(cls)
        made.name, made.__doc__ = name, prompt
        made.engine, made.conversation = engine, conversation
        made._types = {}
        try:
            kind = inspect.Parameter.POSITIONAL_ONLY
            signature = inspect.Signature([inspect.Parameter(place, kind) for place in inputs])
        except ValueError as error:
            raise TemplateError(f"{name}: {error}") from error
        declared = {place: one for place, one in inputs.items() if one is not None}
        made._read(prompt, signature, declared, outputs, {})
        return made

    def _read(
        self,
        prompt: str,
        signature: inspect.Signature,
        inputs: Mapping[str, Input],
        declared: Mapping[str, Output],
        settings: Mapping[str, object],
    ) -> None:
        """Parse the prompt, and check it against what is declared."""
        self.prompt = prompt
        self._signature = signature
        parameters = signature.parameters.values()
        is_plain = all(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in parameters)
        self._ports = tuple(signature.parameters) if is_plain else None
        self.input_steps = {name: one.steps for name, one in inputs.items()}
        conversation = self.conversation
        parts = parse(prompt, self.name)
        parts = with_kinds(self.name, parts, self._signature.parameters, declared)
        self.parts = parts if conversation is None else conversation.apply(parts, self.name)
        places = [part for part in self.parts if isinstance(part, PromptSlot) and part.kind == "output"]
        try:
            outputs = {place.name: declared.get(place.name, Output()).within(settings) for place in places}
        except ConfigError as error:
            raise ConfigError(f"{self.name}: {error.message}") from error
        check_places(self.name, self.parts, self._signature.parameters, declared)
        self._set_outputs(outputs)

    def _set_outputs(self, outputs: Mapping[str, Output]) -> None:
        """Set the outputs, and all that follows from their settings."""
        self.outputs = outputs
        lengths = (one.settings.get("max_tokens", Decode().max_tokens) for one in outputs.values())
        self.max_tokens = max((length for length in lengths if isinstance(length, int)), default=0)
        self._check_samples()
        has_transforms = any(self.input_steps.values()) or any(one.steps for one in outputs.values())
        fallbacks = [one.strategy.fallback for one in outputs.values()]
        self.engines: Mapping[str, str] = {
            self.engine: "llm",
            **{engine: "llm" for engine in fallbacks if engine is not None},
            **({TRANSFORMS: "batch"} if has_transforms else {}),
        }
        self.form = Form(
            self.name,
            self.engine,
            self.parts,
            tuple((name, one.steps, one.form) for name, one in outputs.items()),
            tuple(self.input_steps.items()),
        )

    def _check_samples(self) -> None:
        """Check that nothing in the prompt follows an output of several samples. Raises ConfigError."""
        for name in list(self.outputs)[:-1]:
            if self.outputs[name].num_samples is not None:
                raise ConfigError(f"{self.name}: n={self.outputs[name].num_samples} is for the last output")

    def using(self, *, engine: str | None = None, **settings: object) -> Function:
        """Return this function with other settings of all its outputs, for one call or several:

            joke.using(temperature=0.8, n=3)("cats")

        Settings are those of `Output`, such as `temperature`, `seed`, `max_tokens`, `stop`, `n`, `retries`,
        `timeout_s` and `fallback`. `n` is for the last output alone.

        Raises:
            ConfigError: a setting is unknown, or its value cannot be used.
        """
        made = copy(self)
        made.engine = engine or self.engine
        last = list(self.outputs)[-1:]
        others = {name: value for name, value in settings.items() if name != "n"}
        try:
            made._set_outputs(
                {name: one.using(settings if name in last else others) for name, one in self.outputs.items()}
            )
        except ConfigError as error:
            raise ConfigError(f"{self.name}: {error.message}") from error
        return made

    def __call__(self, *args: object, when: SemanticVariable | None = None, **keywords: object) -> Any:
        """Submit a call and return the variables of its outputs; see the class."""
        return self._call(None, args, keywords, when)

    def map(self, *args: object, when: SemanticVariable | None = None, **keywords: object) -> Any:
        """Submit a call for each item of a list, which is the first argument; all other arguments are the
        same for each. Return a variable whose value is the list of outputs, or a tuple of such variables.

        Raises:
            UserError: as a call does; or an output stands before the first input, so that it would not
                depend on the item.
        """
        if not self._signature.parameters:
            raise UserError(f"{self.name}: map needs an input to take items from")
        if any(one.num_samples is not None for one in self.outputs.values()):
            raise UserError(f"{self.name}: map makes a list already, so n is for single calls")
        each = next(iter(self._signature.parameters))
        self.check_each(each)
        return self._call(each, args, keywords, when)

    def check_each(self, each: str) -> None:
        """Check that a call may be applied to each item of an input.

        Raises:
            UserError: there is no such input, or an output before it would not depend on the item.
        """
        first = next(
            (part for part in self.parts if isinstance(part, PromptSlot) and part.name == each), None
        )
        if first is None or each in self.outputs:
            raise UserError(f"{self.name}: there is no input {each!r} to take items from")
        before = self.parts[: self.parts.index(first)]
        if any(isinstance(part, PromptSlot) and part.kind == "output" for part in before):
            raise UserError(f"{self.name}: map takes items of {each!r}, but an output stands before it")

    def lower(self, build: Build, inputs: Mapping[str, Arg], when: Ref | None) -> Mapping[str, Ref]:
        """Add the steps of a call to the graph of a fragment, and return the values of its outputs."""
        steps = CallSteps(build, self.name, self.engine, self.outputs, when)
        for port, arg in inputs.items():
            steps.read(arg, self.input_steps.get(port, ()))
        return steps.add(self.parts)

    def _inputs(self, args: tuple[object, ...], keywords: Mapping[str, object]) -> Mapping[str, object]:
        """Return the arguments of a call by the names of the inputs."""
        if self._ports is not None and not keywords and len(args) == len(self._ports):
            return dict(zip(self._ports, args, strict=True))
        try:
            bound = self._signature.bind(*args, **keywords)
        except TypeError as error:
            raise UserError(f"{self.name}: {error}") from error
        bound.apply_defaults()
        return bound.arguments

    def _call(
        self,
        each: str | None,
        args: tuple[object, ...],
        keywords: Mapping[str, object],
        when: SemanticVariable | None,
    ) -> Any:
        client = needed_client(self.name)
        given: dict[str, SemanticVariable] = {}
        for name, variable in keywords.items():
            if name not in self.outputs:
                continue
            if not isinstance(variable, SemanticVariable):
                raise UserError(
                    f"{self.name}: the output {name!r} goes to a SemanticVariable, got {variable!r:.80}"
                )
            given[name] = variable
        rest = {name: value for name, value in keywords.items() if name not in given}
        inputs = self._inputs(args, rest)
        results = client.call(self, inputs, tuple(self.outputs), given=given, each=each, when=when)
        for name, kind in self._types.items():
            is_list = each is not None or self.outputs[name].num_samples is not None
            results[name].read_as(kind.value, is_list=is_list)
        found = tuple(results[name] for name in self.outputs)
        return found[0] if len(found) == 1 else found


@overload
def semantic_function(function: Callable[..., object], /) -> Function: ...


@overload
def semantic_function(
    *, engine: str = ..., conversation: Conversation | None = ..., **settings: object
) -> Callable[[Callable[..., object]], Function]: ...


def semantic_function(
    function: Callable[..., object] | None = None, /, **settings: Any
) -> Function | Callable[[Callable[..., object]], Function]:
    """Decorate a Python function to be a semantic function (`Function`), with or without settings in
    parentheses.
    """
    if function is not None:
        return Function(function, **settings)
    return lambda function: Function(function, **settings)
