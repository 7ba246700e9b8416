"""What a graph means, as plainly as it can be said: every primitive in turn, nothing in parallel.

The oracle of property tests. It knows values, ops and the fake engines, and no scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stretto.core import ABSENT, KV, Segment, as_text
from stretto.engines.scripted.fake import FakeBatch, FakeBatchConfig, FakeLLM, FakeLLMConfig
from stretto.graph.compile import decode_of
from stretto.graph.graph import Constant, Graph, Primitive, Ref
from stretto.graph.ops import OPS, is_effect
from stretto.tasks import Done, LLMTask, Task
from support.random_apps import expand_body


def interpret(graph: Graph, inputs: Mapping[str, object]) -> dict[str, object]:
    """The outputs of `graph` by name."""
    return _Interpreter().run(graph, inputs)


class _Interpreter:
    def __init__(self) -> None:
        self._engine = FakeBatch(FakeBatchConfig())

    def run(self, graph: Graph, inputs: Mapping[str, object]) -> dict[str, object]:
        values: dict[tuple[str, str], object] = {(name, ""): inputs[name] for name, _ in graph.inputs}
        for primitive in graph:
            ports = OPS[primitive.op].outputs
            results = self._primitive(primitive, values)
            values.update({(primitive.name, port): results[port] for port in ports})
        return {name: _read(values, ref) for name, ref in graph.outputs}

    def _primitive(
        self, primitive: Primitive, values: Mapping[tuple[str, str], object]
    ) -> Mapping[str, object]:
        spec = OPS[primitive.op]
        skipped = dict.fromkeys(spec.outputs, ABSENT)
        inputs: dict[str, object] = {}
        for arg in primitive.args:
            value = _read(values, arg.ref)
            port = spec.port(arg.port)
            if value is ABSENT and (arg.port == "when" or port is None or not port.optional):
                return skipped
            if value is not ABSENT and arg.port != "when":
                inputs[arg.port] = value
        each = [arg.port for arg in primitive.args if arg.each]
        if not each:
            return self._apply(primitive, inputs)
        results: list[object] = []
        columns = [inputs[port] for port in each]
        for row in zip(*columns, strict=True):  # type: ignore[arg-type]
            if any(item is ABSENT for item in row):
                results.append(ABSENT)
            else:
                results.append(self._apply(primitive, inputs | dict(zip(each, row, strict=True)))[""])
        if is_effect(primitive):
            return {"": True}
        if spec.flatten:
            return {"": [item for result in results if isinstance(result, list) for item in result]}
        return {"": results}

    def _apply(self, primitive: Primitive, inputs: Mapping[str, object]) -> Mapping[str, object]:
        spec = OPS[primitive.op]
        config = dict(primitive.config)
        if spec.evaluate is not None:
            return spec.evaluate(inputs, config)
        if primitive.op == "expand":
            sub = expand_body(str(config["body"]), inputs)
            outputs = self.run(sub, inputs)
            return {"": outputs[sub.outputs[0][0]]}
        if primitive.op == "prefill":
            return {
                "": KV(
                    tuple(
                        Segment(part.text)
                        if isinstance(part, Constant)
                        else Segment(as_text(inputs[part.port]), part.port)
                        for part in primitive.prompt
                    )
                )
            }
        if primitive.op == "decode":
            kv = inputs["kv"]
            assert isinstance(kv, KV)
            return {"": _complete(LLMTask(1, "q", primitive.name, kv.prompt, decode_of(primitive)))}
        task = Task(1, "q", primitive.name, primitive.op, inputs, config)
        return {"": self._engine.run([task])[0]}


def _complete(task: LLMTask) -> object:
    llm = FakeLLM(FakeLLMConfig())
    llm.admit(task, ())
    while llm.has_work():
        for event in llm.step():
            if isinstance(event, Done):
                return event.value
    raise AssertionError("no answer")


def _read(values: Mapping[tuple[str, str], object], ref: Ref) -> object:
    value = values[ref.name, ref.port]
    if ref.index is None or value is ABSENT:
        return value
    assert isinstance(value, Sequence)
    return value[ref.index] if ref.index < len(value) else ABSENT
