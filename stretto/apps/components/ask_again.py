"""A reply that does not fit is asked for again: the LLM reads what is wrong with it.

A step `transform` that tells (setting `tells`) has a list as its result: the value, or an empty text and what
is wrong with the reply. The step `expand` behind it becomes the value, or one more generation, whose prompt
goes on with the reply and what is wrong with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from stretto.apps.components.builder import Builder
from stretto.graph.graph import Arg, Constant, Graph, PromptParts, Ref, Slot

ASK_AGAIN = "ask_again"
"""Name of the expansion that makes a value of a reply, or asks for the reply again."""
INPUT = "input."
"""Beginning of the ports that hold the values of the prompt."""

_BEFORE = "This does not fit: "
_AFTER = ". Write all of it again, as it is asked for."


def settings_of(
    prompt: Sequence[Constant | Slot],
    decode: Mapping[str, object],
    steps: Sequence[str],
    *,
    engine: str,
    transforms: str,
    tries: int,
    name: str,
) -> dict[str, object]:
    """Return the settings of the step `expand` behind a generation whose reply may be asked for again.

    Args:
        prompt: parts of the generation's prompt.
        decode: settings of the generation.
        steps: transforms of the reply.
        engine, transforms: engines of the generation and of the transforms.
        tries: number of times that the LLM is asked again.
        name: beginning of the names of the steps that it becomes, by which errors tell whose they are.
    """
    parts = [
        ["text", part.text, part.role] if isinstance(part, Constant) else ["value", part.port, None]
        for part in prompt
    ]
    return {
        "body": ASK_AGAIN,
        "result": "any",
        "access": "none",
        "prompt": json.dumps(parts),
        "decode": json.dumps(decode),
        "steps": tuple(steps),
        "engine": engine,
        "transforms": transforms,
        "tries": tries,
        "name": name,
    }


def ask_again(inputs: Mapping[str, object]) -> Graph:
    """Return the graph of a value, or of one more generation.

    It is the expansion `ask_again`. Its inputs are the `reply`, what the transform has told of it
    (`checked`), and the values of the prompt. Where no tries are left, the transform fails as any other does.
    """
    build = Builder()
    ports = [name for name in inputs if name.startswith(INPUT)]
    for name in ("reply", "checked", *ports):
        build.reserve(name)
    checked = inputs["checked"]
    steps, transforms = inputs["steps"], str(inputs["transforms"])
    assert isinstance(checked, list)
    assert isinstance(steps, tuple)
    tries = int(str(inputs["tries"]))
    name = f"{inputs['name']}.value"
    if len(checked) == 1:
        value = build.add(name, "select", (Arg("value", Ref("checked", index=0)),))
    elif not tries:
        args = (Arg("value", Ref("reply")),)
        value = build.add(name, "transform", args, engine=transforms, config={"steps": steps})
    else:
        value = _one_more(build, inputs, ports, steps, transforms, tries)
    types = (("reply", "text"), ("checked", "list[any]"), *((port, "any") for port in ports))
    return Graph(ASK_AGAIN, types, tuple(build.primitives), (), (("value", value),))


def _one_more(
    build: Builder,
    inputs: Mapping[str, object],
    ports: Sequence[str],
    steps: tuple[str, ...],
    transforms: str,
    tries: int,
) -> Ref:
    engine, decode = str(inputs["engine"]), json.loads(str(inputs["decode"]))
    before: list[Any] = json.loads(str(inputs["prompt"]))
    known: list[Constant | Slot] = [
        Slot(f"{INPUT}{text}") if kind == "value" else Constant(text, role) for kind, text, role in before
    ]
    prompt: PromptParts = (
        *known,
        Constant("", "assistant"),
        Slot("reply"),
        Constant(_BEFORE, "user"),
        Slot("problem"),
        Constant(_AFTER),
    )
    given = tuple(Arg(port, Ref(port)) for port in ports)
    args = (*given, Arg("reply", Ref("reply")), Arg("problem", Ref("checked", index=1)))
    name = inputs["name"]
    kv = build.add(f"{name}.again.prompt", "prefill", args, engine=engine, prompt=prompt)
    settings = {name: tuple(one) if isinstance(one, list) else one for name, one in decode.items()}
    reply = build.add(f"{name}.again", "decode", (Arg("kv", kv),), engine=engine, config=settings)
    told = build.add(
        f"{name}.again.transform",
        "transform",
        (Arg("value", reply),),
        engine=transforms,
        config={"steps": steps, "tells": True},
    )
    kept = ("prompt", "decode", "steps", "engine", "transforms", "name")
    config = {name: inputs[name] for name in kept}
    return build.add(
        f"{name}.value",
        "expand",
        (Arg("reply", reply), Arg("checked", told), *given),
        config={"body": ASK_AGAIN, "result": "any", "access": "none", **config, "tries": tries - 1},
    )
