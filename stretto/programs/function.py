"""Semantic functions: Python functions whose docstring is a prompt, executed by an LLM.

Source: Parrot §4.1. Differs: an output may stand anywhere and has settings of its own; values are data and
are never parsed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from typing import Any, TypeVar, overload

from stretto.apps.components.ask_again import INPUT, settings_of
from stretto.graph.graph import ANSWER, WHEN, Arg, Constant, Ref, Slot
from stretto.model.errors import ConfigError, TemplateError, UserError
from stretto.model.tasks import Decode
from stretto.programs.conversations import Conversation
from stretto.programs.fragment import Build, Form
from stretto.programs.operators import TRANSFORMS
from stretto.programs.output_types import output_types
from stretto.programs.outputs import Input, Output
from stretto.programs.places import check_places, with_kinds
from stretto.programs.prompt_text import PromptSlot, dedent, parse
from stretto.programs.variable import SemanticVariable, needed_client
from stretto.transforms.annotations import Typed

T = TypeVar("T")


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
        declared = _declared(function, Output)
        signature = _input_signature(function, declared)
        self._types: Mapping[str, Typed] = {}
        self._read(dedent(function.__doc__), signature, _declared(function, Input), declared, settings)
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
        self._parts = parts if conversation is None else conversation.apply(parts, self.name)
        places = [part for part in self._parts if isinstance(part, PromptSlot) and part.kind == "output"]
        try:
            outputs = {place.name: declared.get(place.name, Output()).within(settings) for place in places}
        except ConfigError as error:
            raise ConfigError(f"{self.name}: {error.message}") from error
        check_places(self.name, self._parts, self._signature.parameters, declared)
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
            self._parts,
            tuple((name, one.steps, one.form) for name, one in outputs.items()),
            tuple(self.input_steps.items()),
        )

    def _check_samples(self) -> None:
        """Check that nothing in the prompt follows an output of several samples. Raises ConfigError."""
        for name in list(self.outputs)[:-1]:
            if self.outputs[name].num_samples is not None:
                raise ConfigError(f"{self.name}: n={self.outputs[name].num_samples} is for the last output")

    def _asks_again(self, output: Output, *, is_mapped: bool) -> bool:
        """Return whether the LLM is asked again where the reply for an output does not fit: only for single
        calls of a prompt with one output.
        """
        is_single = len(self.outputs) == 1 and output.num_samples is None and not is_mapped
        return is_single and bool(output.steps) and output.num_asks > 0

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
            (part for part in self._parts if isinstance(part, PromptSlot) and part.name == each), None
        )
        if first is None or each in self.outputs:
            raise UserError(f"{self.name}: there is no input {each!r} to take items from")
        before = self._parts[: self._parts.index(first)]
        if any(isinstance(part, PromptSlot) and part.kind == "output" for part in before):
            raise UserError(f"{self.name}: map takes items of {each!r}, but an output stands before it")

    def lower(self, build: Build, inputs: Mapping[str, Arg], when: Ref | None) -> Mapping[str, Ref]:
        """Add the steps of a call to the graph of a fragment: a prefill and a decode for each output.

        What an earlier output of the same prompt stands for is what the LLM has generated: its tokens, where
        the same LLM goes on, with all white space.
        """
        known = {port: self._transformed(build, arg) for port, arg in inputs.items()}
        prompt: list[Constant | Slot] = []
        refs: dict[str, Ref] = {}
        for part in self._parts:
            if isinstance(part, Constant):
                prompt.append(part)
            elif part.kind == "input":
                prompt.append(Slot(part.name))
            else:
                samples = self.outputs[part.name].num_samples
                made = [self._generate(build, part.name, prompt, known, when) for _ in range(samples or 1)]
                steps = self.outputs[part.name].steps
                if self._asks_again(self.outputs[part.name], is_mapped=made[0].each):
                    refs[part.name] = self._ask_again(build, made[0], prompt, known, when)
                    break
                found = [self._add_transform(build, one, steps) if steps else one.ref for one in made]
                refs[part.name] = found[0] if samples is None else _listed(build, found)
                output = made[0]
                answer = replace(output, port=f"{part.name}.{ANSWER}", ref=replace(output.ref, port=ANSWER))
                known |= {part.name: output, answer.port: answer}
                prompt.append(Slot(answer.port))
        return refs

    def _transformed(self, build: Build, arg: Arg) -> Arg:
        steps = self.input_steps.get(arg.port)
        return replace(arg, ref=self._add_transform(build, arg, steps)) if steps else arg

    def _add_transform(self, build: Build, arg: Arg, steps: tuple[str, ...]) -> Ref:
        return build.add(
            f"{self.name}.{arg.port}.transform",
            "transform",
            [replace(arg, port="value")],
            engine=TRANSFORMS,
            config={"steps": steps},
        )

    def _ask_again(
        self,
        build: Build,
        reply: Arg,
        prompt: list[Constant | Slot],
        known: Mapping[str, Arg],
        when: Ref | None,
    ) -> Ref:
        """Add the steps that make the value of a reply, or ask for it again."""
        output = self.outputs[reply.port]
        name = f"{self.name}.{reply.port}"
        told = build.add(
            f"{name}.transform",
            "transform",
            [replace(reply, port="value")],
            engine=TRANSFORMS,
            config={"steps": output.steps, "tells": True},
        )
        ports = dict.fromkeys(part.port for part in prompt if isinstance(part, Slot))
        args = [Arg("reply", reply.ref), Arg("checked", told)]
        args += [replace(known[port], port=f"{INPUT}{port}") for port in ports]
        if when is not None:
            args.append(Arg(WHEN, when))
        config = settings_of(
            prompt,
            output.settings,
            output.steps,
            engine=self.engine,
            transforms=TRANSFORMS,
            tries=output.num_asks,
        )
        fallback = output.strategy.fallback
        pairs = None if fallback is None else f"{self.engine}:{fallback}"
        strategy = replace(output.strategy, fallback=pairs)
        return build.add(f"{name}.value", "expand", args, config=config, strategy=strategy)

    def _generate(
        self,
        build: Build,
        output: str,
        prompt: list[Constant | Slot],
        known: Mapping[str, Arg],
        when: Ref | None,
    ) -> Arg:
        """Add the steps that generate one output after a prompt; return it as an argument of later ones."""
        parts = tuple(prompt)
        if parts and parts[-1] == Constant("", "assistant"):  # the model's markup begins that message itself
            parts = parts[:-1]
        parts = parts or (Constant(""),)
        ports = dict.fromkeys(part.port for part in parts if isinstance(part, Slot))
        args = [known[port] for port in ports]
        is_mapped = any(arg.each for arg in args)
        if when is not None:
            args.append(Arg(WHEN, when))
        name, chosen = f"{self.name}.{output}", self.outputs[output]
        kv = build.add(
            f"{name}.prompt",
            "prefill",
            args,
            engine=self.engine,
            prompt=parts,
            strategy=chosen.strategy,
        )
        decoded = build.add(
            name,
            "decode",
            [Arg("kv", kv, is_mapped)],
            engine=self.engine,
            config=chosen.settings,
            strategy=chosen.strategy,
        )
        return Arg(output, decoded, is_mapped)

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


def _listed(build: Build, refs: list[Ref]) -> Ref:
    """Add a step that makes a list of values."""
    args = [Arg(f"sample{place}", ref) for place, ref in enumerate(refs)]
    return build.add("samples", "aggregate", args)


def _declared(function: Callable[..., object], kind: type[T]) -> dict[str, T]:
    """Return the parameters whose default is of a kind, such as an `Output`."""
    return {
        parameter.name: parameter.default
        for parameter in inspect.signature(function).parameters.values()
        if isinstance(parameter.default, kind)
    }


def _input_signature(function: Callable[..., object], outputs: Mapping[str, Output]) -> inspect.Signature:
    """Return the signature of the inputs alone, which positional arguments are bound to in their order.

    Raises:
        TemplateError: a parameter collects arguments, or one with a default value precedes one without.
    """
    name = getattr(function, "__name__", "")
    parameters = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TemplateError(f"{name}: *{parameter.name} cannot be a place of a prompt")
        if isinstance(parameter.default, Input):
            parameter = parameter.replace(default=parameter.empty)
        if parameter.name not in outputs:
            parameters.append(parameter)
    try:
        return inspect.Signature(parameters)
    except ValueError as error:  # an `Input` after a default value, in a position
        raise TemplateError(f"{name}: an input without a value follows one with a default value") from error
