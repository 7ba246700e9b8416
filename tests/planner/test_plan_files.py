"""Applications, requests and machines: what they mean, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stretto.costs.output_lengths import LengthsBySource, OutputLengths
from stretto.costs.presets import load_output_lengths
from stretto.model.errors import CapacityError, ConfigError, StrettoError
from stretto.planner.application import Application, AppRequest, ModelNode
from stretto.planner.machine import MACHINES, costs_by_tp, machine_of, planned_model
from stretto.planner.plan_files import read_application
from stretto.planner.running.requests import read_planned_requests
from stretto.planner.workload import Workload

A100 = MACHINES["8xA100-80G"]
ANY = Application("app", [ModelNode("a", "m", 9)])


def read_app(folder: Path, text: str) -> Application:
    path = folder / "app.yaml"
    path.write_text(text, "utf-8")
    return read_application(path)


def read_lines(folder: Path, *lines: object) -> list[AppRequest]:
    path = folder / "in.jsonl"
    path.write_text("\n".join(one if isinstance(one, str) else json.dumps(one) for one in lines), "utf-8")
    return read_file(path)


def read_file(path: Path) -> list[AppRequest]:
    requests, refused = read_planned_requests(path, ANY)
    assert not refused
    return requests


def workload(nodes: list[ModelNode], requests: list[AppRequest]) -> Workload:
    app = Application("app", nodes)
    models = {node.name: planned_model(node.model, A100) for node in app.nodes}
    return Workload(app, requests, models, load_output_lengths())


def test_nodes_come_in_topological_order(tmp_path: Path) -> None:
    app = read_app(
        tmp_path,
        """
        name: judged
        nodes:
          - {name: judge, model: vicuna-13b-v1.5, max_tokens: 9, inputs: [a, b], calls: 2}
          - {name: b, model: mpt-7b-chat, max_tokens: 5}
          - {name: a, model: mpt-7b-chat, max_tokens: 5}
        """,
    )
    assert [node.name for node in app.nodes] == ["b", "a", "judge"]


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ("[]", "at least one node"),
        ("[{name: a, model: m}]", "node 1: the key 'max_tokens' is missing; it must be a whole number"),
        (
            "[{name: a, model: m, max_tokens: 2, colour: red}]",
            "node 1: unknown key 'colour'; known keys: name, model",
        ),
        (
            "[{name: a, model: m, max_tokens: many}]",
            "node 1: max_tokens must be a whole number from 1 to .*, got 'many'",
        ),
        ("[{name: a, model: m, max_tokens: 0}]", "max_tokens must be a whole number from 1"),
        ("[{name: a, model: m, max_tokens: 1, inputs: [b]}]", "unknown input 'b'"),
        ("[{name: a, model: m, max_tokens: 1, inputs: [a]}]", "chain: true"),
        (
            "[{name: a, model: m, max_tokens: 1, inputs: [b]}, "
            "{name: b, model: m, max_tokens: 1, inputs: [a]}]",
            "cycle: a, b",
        ),
        ("[{name: a, model: m, max_tokens: 1}, {name: a, model: m, max_tokens: 1}]", "twice"),
        ("[", "app.yaml"),
        ("[{name: a, model: m, max_tokens: 2020-99-99}]", "app.yaml"),
        (f"[{{name: a, model: m, max_tokens: {'9' * 5000}}}]", "app.yaml"),
        (
            f"[{{name: a, model: m, max_tokens: 1, prompt_tokens: {10**30}}}]",
            "prompt_tokens must be a number of tokens, 0 to 2147483647",
        ),
        ("[" * 600, "recursion"),
        ("[{name: a, model: m, max_tokens: 1, max_tokens: 2}]", "'max_tokens' is there twice"),
        ("[]\nnodes: []", "'nodes' is there twice"),
        ("[]\nname: [a]", "name must be a text"),
        (
            "[{name: a, model: m, max_tokens: 1, calls: 2147483647}]",
            "node 1: calls must be a whole number from 1 to 65536",
        ),
        ("[{name: '', model: m, max_tokens: 1}]", "node 1: name must be a text that is not empty"),
        (
            "[{name: a, model: m, max_tokens: 1}, {name: b, model: m, max_tokens: 1, inputs: [a, a]}]",
            "same input twice",
        ),
    ],
)
def test_a_wrong_application_is_refused(tmp_path: Path, nodes: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_app(tmp_path, f"nodes: {nodes}")


def test_requests_are_read(tmp_path: Path) -> None:
    requests = read_lines(
        tmp_path,
        {"custom_id": "1", "prompt": "abcdefghi"},
        "",
        {"custom_id": "2", "prompt_tokens": 7, "nodes": ["a"], "answers": {"a": 5}},
        {"custom_id": "3", "chunks": ["abcd", 9]},
    )
    assert requests == [
        AppRequest("1", 3, answers={}),
        AppRequest("2", 7, (), ("a",), {"a": 5}),
        AppRequest("3", 0, (1, 9), answers={}),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: no JSON, character 2: Expecting property name"),
        ('{"custom_id": "2", "prompt": "x"', "line 2: no JSON, character 33: Expecting ',' delimiter"),
        ('{"custom_id": "2", "prompt": "x', "line 2: no JSON, character 30: Unterminated string$"),
        ('{"custom_id": "1", "prompt": "x"}', "line 2: custom_id '1' was used in line 1"),
        ('{"prompt": "x"}', "line 2: the key 'custom_id' is missing; it must be a text"),
        ('{"custom_id": "2"}', "line 2: a request needs"),
        ('{"custom_id": "2", "prompt": "x", "wish": 1}', "unknown key 'wish'; known keys: custom_id, prompt"),
        ('{"custom_id": "2", "prompt_tokens": -1}', "number of tokens"),
        ("7", "line 2: the value must be a mapping with custom_id, prompt"),
        ("[" * 100_000, "line 2: .*recursion"),
        ('{"custom_id": "2", "prompt": "x", "prompt": "y"}', "line 2: the field 'prompt' is there twice"),
        ('{"custom_id": "2", "prompt": 7}', "line 2: prompt must be a text"),
        ('{"custom_id": "2", "prompt_tokens": "x"}', "line 2: prompt_tokens must be a number of tokens"),
        (
            '{"custom_id": "2", "prompt_tokens": 9999999999}',
            "line 2: prompt_tokens must be a number of tokens",
        ),
        (
            '{"custom_id": "2", "prompt": "x", "answers": {"a": "y"}}',
            "line 2: answers.a must be a number of tokens",
        ),
        ('{"custom_id": "2", "prompt": "x", "nodes": []}', "line 2: nodes must name at least one"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_lines(tmp_path, {"custom_id": "1", "prompt": "x"}, line)


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"custom_id": "1", "prompt": "x"}', "utf-8-sig")
    assert [request.id for request in read_file(path)] == ["1"]


def test_a_file_without_requests_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"in\.jsonl: there are no requests"):
        read_lines(tmp_path, "", " ")


def test_a_line_ends_at_a_line_feed_alone(tmp_path: Path) -> None:
    """JSON texts may have the other line separators of Unicode."""
    path = tmp_path / "in.jsonl"
    path.write_bytes(
        '{"custom_id": "1", "prompt": "a\u2028b\x85c"}\r\n{"custom_id": "2", "prompt": "x"}'.encode()
    )
    assert [request.id for request in read_file(path)] == ["1", "2"]
    path.write_bytes(b'{"custom_id": "1", "prompt": "x"}\n{"custom_id": "\xff"}')
    with pytest.raises(ConfigError, match="line 2: byte 16 is no UTF-8"):
        read_file(path)


def test_answers_become_part_of_prompts() -> None:
    nodes = [
        ModelNode("write", "vicuna-13b-v1.5", 100, 10, chain=True),
        ModelNode("judge", "Llama-2-70b-chat-hf", 20, 5, ("write",), 2),
    ]
    drawn = workload(nodes, [AppRequest("1", 3, (50, 60)), AppRequest("2", 3, (70,))]).draw(0)
    write, judge = drawn["write"], drawn["judge"]
    assert write.calls.previous.tolist() == [-1, 0, -1]
    assert write.prompts.tolist() == [63, 73 + write.outputs[0], 83]
    assert judge.calls.requests.tolist() == [0, 0, 1, 1]
    assert judge.prompts.tolist() == [8 + write.outputs[1]] * 2 + [8 + write.outputs[2]] * 2
    assert write.outputs.min() >= 1
    assert write.outputs.max() <= 100


def test_draws_differ_and_repeat_by_seed() -> None:
    load = workload([ModelNode("a", "mpt-7b-chat", 500)], [AppRequest(str(n), 5) for n in range(50)])
    assert load.draw(1)["a"].outputs.tolist() == load.draw(1)["a"].outputs.tolist()
    assert load.draw(1)["a"].outputs.tolist() != load.draw(2)["a"].outputs.tolist()


def test_draws_follow_the_counted_lengths() -> None:
    app = Application("app", [ModelNode("a", "mpt-7b-chat", 500)])
    lengths = LengthsBySource({("mpt-7b-chat", ""): OutputLengths((10, 20), (1.0, 3.0))})
    models = {"a": planned_model("mpt-7b-chat", A100)}
    outputs = (
        Workload(app, [AppRequest(str(n), 5) for n in range(4000)], models, lengths).draw(0)["a"].outputs
    )
    assert set(outputs.tolist()) == {10, 20}
    assert 0.72 < (outputs == 20).mean() < 0.78


@pytest.mark.parametrize(
    ("model", "template", "is_estimated"),
    [
        ("mpt-7b-chat", "", False),
        ("mosaicml/MPT-7B-chat", "", False),
        ("Mistral-7B-Instruct-v0.2", "older template", False),
        ("Mistral-7B-Instruct-v0.2", "unheard of", True),
        ("stablelm-tuned-alpha-7b", "", True),
    ],
)
def test_lengths_are_those_of_the_model_however_it_is_spelt(
    model: str, template: str, is_estimated: bool
) -> None:
    load = workload([ModelNode("a", model, 500, template=template)], [AppRequest("1", 5)])
    assert load.estimated == ({"a"} if is_estimated else set())


def test_known_lengths_and_routes_are_kept() -> None:
    """A known answer, too, ends at `max_tokens`."""
    nodes = [ModelNode("a", "mpt-7b-chat", 50), ModelNode("b", "mpt-7b-chat", 50)]
    drawn = workload(
        nodes, [AppRequest("1", 5, (), ("b",), {"b": 37}), AppRequest("2", 5, (), ("a",), {"a": 77})]
    ).draw(0)
    assert drawn["a"].calls.requests.tolist() == [1]
    assert drawn["b"].outputs.tolist() == [37]
    assert drawn["a"].outputs.tolist() == [50]


def test_a_node_may_have_no_requests_although_another_takes_its_answers() -> None:
    nodes = [ModelNode("a", "mpt-7b-chat", 50), ModelNode("b", "mpt-7b-chat", 50, inputs=("a",))]
    drawn = workload(nodes, [AppRequest("1", 5, (), ("b",))]).draw(0)
    assert drawn["a"].prompts.tolist() == []
    assert drawn["b"].prompts.tolist() == [5]


@pytest.mark.parametrize(
    ("nodes", "request_", "error", "message"),
    [
        ([ModelNode("a", "mpt-7b-chat", 5)], AppRequest("r", 9000), CapacityError, "'r'.* 9000 tokens"),
        ([ModelNode("a", "mpt-7b-chat", 5)], AppRequest("r", 9, (), ("z",)), ConfigError, "unknown node 'z'"),
        ([ModelNode("a", "mpt-7b-chat", 5, chain=True)], AppRequest("r", 9), ConfigError, "no chunks"),
        (
            [ModelNode("a", "mpt-7b-chat", 5)],
            AppRequest("r", 9, (), (), {"z": 1}),
            ConfigError,
            "answer .*'z'",
        ),
        (
            [ModelNode("a", "mpt-7b-chat", 5, calls=10**9)],
            AppRequest("r", 9),
            ConfigError,
            "'a' has 1000000000 calls",
        ),
    ],
)
def test_impossible_requests_are_named(
    nodes: list[ModelNode], request_: AppRequest, error: type[StrettoError], message: str
) -> None:
    with pytest.raises(error, match=message):
        workload(nodes, [request_])


def test_machines_say_what_fits() -> None:
    assert machine_of("8xa100-80g") is A100
    with pytest.raises(ConfigError, match="there is no machine '8xH10': the nearest is '8xH100'"):
        machine_of("8xH10")
    large = planned_model("meta-llama/Llama-2-70b-chat", A100)
    assert large.name == "Llama-2-70b-chat-hf"
    assert sorted(costs_by_tp(large, A100, 4096)) == [2, 4]
    measured = costs_by_tp(planned_model("vicuna-13b-v1.5", A100), A100, 2048)
    assert sorted(measured) == [1, 2, 4]
    assert not measured[1].is_estimated
    assert costs_by_tp(planned_model("gpt-j-6b", A100), A100, 2048)[
        1
    ].is_estimated  # its start was not measured
    with pytest.raises(ConfigError, match="nearest is 'vicuna"):
        planned_model("vicuna", A100)


def test_a_model_that_is_too_large_is_refused_with_one_that_fits() -> None:
    model = planned_model("Llama-2-70b-chat-hf", A100)
    larger = type(model)("huge", 400, 16384, 64, 8, 65536, 32000)
    with pytest.raises(ConfigError, match=r"huge.*would fit"):
        costs_by_tp(larger, A100, 100)
