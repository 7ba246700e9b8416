"""The meaning of a graph, as plainly as possible: every primitive in turn, nothing in parallel.

The oracle of property tests. It knows values, ops and the fake engines, and no scheduler.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from zlib import crc32

from benchmarks.common.fake_engines import FakeBatch, FakeBatchConfig, FakeLLM, FakeLLMConfig
from stretto.graph.compile import decode_of
from stretto.graph.graph import RECORD, Constant, Graph, Primitive, Ref
from stretto.graph.op_table import OPS
from stretto.model.errors import BadReply
from stretto.model.tasks import Done, LLMTask, Task
from stretto.model.values import ABSENT, KV, Failure, Prompt, Segment, as_text
from support.random_apps import expand_body


def interpret(graph: Graph, inputs: Mapping[str, object], failing: Collection[str] = ()) -> dict[str, object]:
    """Return the outputs of `graph` by name, where the engine steps called `failing` fail at times
    (`fails`).
    """
    return _Interpreter(failing).run(graph, inputs)


def fails(failing: Collection[str], step: str, asked: Prompt | Mapping[str, object]) -> bool:
    """Return whether a step in `failing` fails this time: two times in three, decided by its inputs."""
    if step not in failing:
        return False
    key = sorted(asked.items()) if isinstance(asked, Mapping) else asked
    return crc32(repr(key).encode()) % 3 != 0


def nonsense(step: str) -> BadReply:
    """Return the error with which a failing step fails."""
    return BadReply("nonsense", step=step)


class _Interpreter:
    def __init__(self, failing: Collection[str]) -> None:
        self._failing = failing
        self._engine = FakeBatch(FakeBatchConfig())

    def run(self, graph: Graph, inputs: Mapping[str, object]) -> dict[str, object]:
        values: dict[tuple[str, str], object] = {(name, ""): inputs[name] for name, _ in graph.inputs}
        for primitive in graph:
            ports = OPS[primitive.op].outputs
            results = self._primitive(primitive, values)
            values.update({(primitive.name, port): results[port] for port in ports})
            if primitive.op == "expand":
                values[primitive.name, RECORD] = results.get(RECORD, results[""])
        return {name: _read(values, ref) for name, ref in graph.outputs}

    def _primitive(
        self, primitive: Primitive, values: Mapping[tuple[str, str], object]
    ) -> Mapping[str, object]:
        spec = OPS[primitive.op]
        inputs: dict[str, object] = {}
        failures: list[Failure] = []
        passed_over: list[Failure] = []
        is_absent = False
        for arg in primitive.args:
            value = _read(values, arg.ref)
            port = spec.port(arg.port)
            is_optional = arg.port != "when" and port is not None and port.optional
            failed = [value] if isinstance(value, Failure) else []
            if isinstance(value, list) and not arg.each and primitive.op != "select":
                failed = [item for item in value if isinstance(item, Failure)]
            if value is ABSENT:
                is_absent = is_absent or not is_optional
            elif failed:
                (passed_over if primitive.op == "select" and is_optional else failures).append(failed[0])
            elif arg.port != "when":
                inputs[arg.port] = value
        if is_absent:
            return dict.fromkeys(spec.outputs, ABSENT)
        if not inputs:
            failures += passed_over
        if failures:
            return dict.fromkeys(spec.outputs, failures[0])
        each = [arg.port for arg in primitive.args if arg.each]
        if not each:
            return self._apply(primitive, inputs)
        results: list[object] = []
        columns = [inputs[port] for port in each]
        for row in zip(*columns, strict=True):
            if any(item is ABSENT for item in row):
                results.append(ABSENT)
            elif failed := [item for item in row if isinstance(item, Failure)]:
                results.append(failed[0])
            else:
                results.append(self._apply(primitive, inputs | dict(zip(each, row, strict=True)))[""])
        if OPS.is_effect(primitive):
            return {"": next((result for result in results if isinstance(result, Failure)), True)}
        if spec.flatten:
            return {"": [item for result in results for item in _items(result)]}
        return {"": results}

    def _apply(self, primitive: Primitive, inputs: Mapping[str, object]) -> Mapping[str, object]:
        spec = OPS[primitive.op]
        config = dict(primitive.config)
        kv = inputs.get("kv")
        if fails(self._failing, primitive.name, kv.prompt if isinstance(kv, KV) else inputs):
            return dict.fromkeys(spec.outputs, Failure(nonsense(primitive.name)))
        if spec.evaluate is not None:
            return spec.evaluate(inputs, config)
        if primitive.op == "expand":
            sub = expand_body(str(config["body"]), {**config, **inputs})
            outputs = self.run(sub, inputs)
            return dict(zip(("", RECORD), (outputs[name] for name, _ in sub.outputs), strict=False))
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


def _items(result: object) -> list[object]:
    """Return the items that one result adds to a flat list."""
    if isinstance(result, Failure):
        return [result]
    return result if isinstance(result, list) else []


def _read(values: Mapping[tuple[str, str], object], ref: Ref) -> object:
    value = values[ref.name, ref.port]
    if ref.index is None or value is ABSENT or isinstance(value, Failure):
        return value
    assert isinstance(value, Sequence)
    return value[ref.index] if ref.index < len(value) else ABSENT
