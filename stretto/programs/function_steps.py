"""The steps of a call of a semantic function: a prefill and a decode for each output, and what makes values
of texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from stretto.apps.components.ask_again import INPUT, settings_of
from stretto.graph.graph import ANSWER, WHEN, Arg, Constant, Ref, Slot
from stretto.programs.fragment import Build
from stretto.programs.operators import TRANSFORMS
from stretto.programs.outputs import Output
from stretto.programs.prompt_text import PromptSlot


@dataclass(slots=True)
class CallSteps:
    """Adds the steps of one call to the graph of a fragment.

    Attributes:
        name: name of the function.
        engine: name of the LLM engine.
        outputs: settings of the outputs, by name.
        known: what slots of the prompt stand for, by port: inputs, and outputs so far.
        when: value without which the call is skipped.
    """

    build: Build
    name: str
    engine: str
    outputs: Mapping[str, Output]
    when: Ref | None
    known: dict[str, Arg] = field(default_factory=dict)
    _prompt: list[Constant | Slot] = field(default_factory=list)

    def read(self, arg: Arg, steps: tuple[str, ...]) -> None:
        """Add an input, with its transforms."""
        self.known[arg.port] = replace(arg, ref=self._transformed(arg, steps)) if steps else arg

    def add(self, parts: tuple[Constant | PromptSlot, ...]) -> Mapping[str, Ref]:
        """Add the steps of all outputs of a prompt, and return their values.

        What an earlier output of the same prompt stands for is what the LLM has generated: its tokens, where
        the same LLM goes on, with all white space.
        """
        refs: dict[str, Ref] = {}
        for part in parts:
            if isinstance(part, Constant):
                self._prompt.append(part)
            elif part.kind == "input":
                self._prompt.append(Slot(part.name))
            else:
                output = self.outputs[part.name]
                made = [self._generate(part.name, output, at) for at in range(output.num_samples or 1)]
                first = made[0]
                if self._asks_again(output, is_mapped=first.each):
                    refs[part.name] = self._ask_again(first, output)
                    break
                found = [self._transformed(one, output.steps) for one in made]
                refs[part.name] = found[0] if output.num_samples is None else _listed(self.build, found)
                answer = replace(first, port=f"{part.name}.{ANSWER}", ref=replace(first.ref, port=ANSWER))
                self.known |= {part.name: first, answer.port: answer}
                self._prompt.append(Slot(answer.port))
        return refs

    def _asks_again(self, output: Output, *, is_mapped: bool) -> bool:
        """Return whether the LLM is asked again where the reply for an output does not fit: only for single
        calls of a prompt with one output.
        """
        is_single = len(self.outputs) == 1 and output.num_samples is None and not is_mapped
        return is_single and bool(output.steps) and output.num_asks > 0

    def _transformed(self, arg: Arg, steps: tuple[str, ...], **more: object) -> Ref:
        """Add the step that transforms a value, if it has transforms."""
        if not steps:
            return arg.ref
        return self.build.add(
            f"{self.name}.{arg.port}.transform",
            "transform",
            [replace(arg, port="value")],
            engine=TRANSFORMS,
            config={"steps": steps, **more},
        )

    def _ask_again(self, reply: Arg, output: Output) -> Ref:
        """Add the steps that make the value of a reply, or ask for it again."""
        checked = self._transformed(reply, output.steps, tells=True)
        ports = dict.fromkeys(part.port for part in self._prompt if isinstance(part, Slot))
        args = [Arg("reply", reply.ref), Arg("checked", checked)]
        args += [replace(self.known[port], port=f"{INPUT}{port}") for port in ports]
        if self.when is not None:
            args.append(Arg(WHEN, self.when))
        config = settings_of(
            self._prompt,
            output.settings,
            output.steps,
            engine=self.engine,
            transforms=TRANSFORMS,
            tries=output.num_asks,
            name=f"{self.name}.{reply.port}",
        )
        fallback = output.strategy.fallback
        pairs = None if fallback is None else f"{self.engine}:{fallback}"
        strategy = replace(output.strategy, fallback=pairs)
        return self.build.add(
            f"{self.name}.{reply.port}.value", "expand", args, config=config, strategy=strategy
        )

    def _generate(self, name: str, output: Output, sample: int) -> Arg:
        """Add the steps that generate a sample of an output after the prompt so far, and return it."""
        parts = tuple(self._prompt)
        if parts and parts[-1] == Constant("", "assistant"):  # the model's markup begins that message itself
            parts = parts[:-1]
        parts = parts or (Constant(""),)
        ports = dict.fromkeys(part.port for part in parts if isinstance(part, Slot))
        args = [self.known[port] for port in ports]
        is_mapped = any(arg.each for arg in args)
        if self.when is not None:
            args.append(Arg(WHEN, self.when))
        full, engine, strategy = f"{self.name}.{name}", self.engine, output.strategy
        kv = self.build.add(f"{full}.prompt", "prefill", args, engine=engine, prompt=parts, strategy=strategy)
        kv_arg = [Arg("kv", kv, is_mapped)]
        decoded = self.build.add(
            full, "decode", kv_arg, engine=engine, config=output.sample_settings(sample), strategy=strategy
        )
        return Arg(name, decoded, is_mapped)


def _listed(build: Build, refs: list[Ref]) -> Ref:
    """Add a step that makes a list of values."""
    args = [Arg(f"sample{place}", ref) for place, ref in enumerate(refs)]
    return build.add("samples", "aggregate", args)
