"""`stretto plan` as a user runs it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.command_line import CommandLine

from stretto.planner.plan import Plan
from stretto.planner.planners.moldable_list import moldable_list
from stretto.planner.run_times import RunTimes

APP = """
name: pair
nodes:
  - {name: short, model: mpt-7b-chat, max_tokens: 30}
  - {name: judge, model: Llama-2-70b-chat-hf, max_tokens: 20, inputs: [short]}
"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    app, requests = tmp_path / "app.yaml", tmp_path / "in.jsonl"
    app.write_text(APP, "utf-8")
    lines = (json.dumps({"custom_id": str(at), "prompt": "a" * (20 + at)}) for at in range(30))
    requests.write_text("\n".join(lines), "utf-8")
    return app, requests


def test_plan_shows_a_table_a_chart_and_the_prediction(
    stretto: CommandLine, files: tuple[Path, Path]
) -> None:
    app, requests = files
    ended = stretto("plan", app, "--requests", requests, "--planner", "moldable_list", "--draws", "2")
    assert ended.code == 0, ended
    assert "Llama-2-70b-chat-hf*" in ended.out
    assert "mpt-7b-chat " in ended.out
    assert "GPU 7 |" in ended.out
    assert "from 2 draws" in ended.out
    assert "lower bound" in ended.out
    assert "tokens of prompts are estimated" in ended.out


def test_a_quiet_plan_writes_warnings_alone(stretto: CommandLine, files: tuple[Path, Path]) -> None:
    app, requests = files
    options = ("--planner", "moldable_list", "--draws", "1", "--quiet")
    ended = stretto("plan", app, "--requests", requests, *options)
    assert [line.split(":")[0] for line in ended.err.splitlines()] == ["warning"]


def test_a_machine_file_is_planned_for_with_a_warning(
    stretto: CommandLine, files: tuple[Path, Path], tmp_path: Path
) -> None:
    app, requests = files
    machine = tmp_path / "box.yaml"
    machine.write_text("{gpu: H200, count: 2}", "utf-8")
    options = ("--planner", "min_heuristic", "--draws", "1")
    ended = stretto("plan", app, "--requests", requests, "--machine", machine, *options)
    assert ended.code == 0, ended
    assert "were not measured on H200; those of A100-80G, scaled by peak figures, stand in" in ended.err
    assert ended.err.count("warning") == 1
    assert "mpt-7b-chat*" in ended.out
    assert "GPU 2 |" not in ended.out


def test_plan_as_json_is_the_plan_as_data(stretto: CommandLine, files: tuple[Path, Path]) -> None:
    app, requests = files
    ended = stretto("plan", app, "--requests", requests, "--draws", "1", "--json")
    assert ended.code == 0, ended
    found = json.loads(ended.out)
    assert {node for action in found["actions"] for node in action["nodes"]} == {"short", "judge"}
    assert all(len(action["devices"]) == action["tp"] for action in found["actions"])
    assert found["lower_bound_s"] <= found["predicted_s"][0]
    assert found["interval_s"] == found["predicted_s"] * 2
    assert found["prompt_tokens"] == "estimated"


def test_graph_shows_the_models_and_plans_nothing(stretto: CommandLine, files: tuple[Path, Path]) -> None:
    app, requests = files
    ended = stretto("plan", app, "--requests", requests, "--graph")
    assert ended.out.splitlines() == [
        "short (mpt-7b-chat, 30 calls) -> judge",
        "judge (Llama-2-70b-chat-hf, 30 calls)",
    ]


def test_the_chart_as_a_page(stretto: CommandLine, files: tuple[Path, Path]) -> None:
    app, requests = files
    app.write_text(APP.replace("name: pair", "name: <pair>"), "utf-8")
    page = app.parent / "plan.html"
    options = ("--planner", "min_heuristic", "--draws", "1", "--no-preemption")
    ended = stretto("plan", app, "--requests", requests, *options, "--html", page)
    assert ended.code == 0, ended
    text = page.read_text("utf-8")
    assert text.count("<text") == 8 + 2
    assert text.count("<rect") % 2 == 0
    assert "mpt-7b-chat: starts at 0.0 s" in text
    assert "<p>predicted: " in text
    assert "<th>nodes</th>" in text
    assert "<td>Llama-2-70b-chat-hf*</td>" in text
    assert "pale while its model loads" in text
    assert "<title>&lt;pair&gt;</title>" in text
    assert "<pair>" not in text
    ended = stretto("plan", app, "--requests", requests, *options, "--html", app.parent)
    assert ended.code != 0
    assert "--html" in ended.err


def test_the_page_of_a_plan_whose_nodes_have_servers_apart(stretto: CommandLine, tmp_path: Path) -> None:
    app, requests = tmp_path / "app.yaml", tmp_path / "in.jsonl"
    machine, page = tmp_path / "box.yaml", tmp_path / "plan.html"
    chain = "{name: chained, model: vicuna-13b-v1.5, max_tokens: 90, chain: true}"
    app.write_text(f"nodes: [{chain}, {{name: other, model: vicuna-13b-v1.5, max_tokens: 60}}]", "utf-8")
    lines = [{"custom_id": str(at), "prompt_tokens": 10, "nodes": ["other"]} for at in range(500)]
    long = {"prompt_tokens": 0, "chunks": [1000] * 5, "nodes": ["chained"]}
    lines += [{"custom_id": f"long {at}", **long} for at in range(2)]
    requests.write_text("\n".join(map(json.dumps, lines)), "utf-8")
    machine.write_text("{gpu: A100-80G, count: 2}", "utf-8")
    options = ("--machine", machine, "--planner", "moldable_list", "--draws", "1", "--html", page)
    ended = stretto("plan", app, "--requests", requests, *options)
    assert ended.code == 0, ended
    assert "vicuna-13b-v1.5 (servers 2)" in page.read_text("utf-8")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--machine", "8xA100"), "8xA100-80G"),
        (("--machine", "missing.yaml"), "machine missing.yaml"),
        (("--planner", "magic"), "max_heuristic"),
        (("--draws", "0"), "--draws must be 1 to"),
        (("--draws", "99999999999"), "--draws must be 1 to"),
    ],
)
def test_bad_options_are_refused_before_any_work(
    stretto: CommandLine, files: tuple[Path, Path], options: tuple[str, str], message: str
) -> None:
    app, requests = files
    ended = stretto("plan", app, "--requests", requests, *options)
    assert ended.code == 2
    assert message in ended.err


def test_names_of_nodes_are_shown_as_they_are(stretto: CommandLine, tmp_path: Path) -> None:
    """Brackets and colons in them are no markup."""
    app, requests = tmp_path / "app.yaml", tmp_path / "in.jsonl"
    app.write_text("nodes: [{name: '[/red] :smile:', model: mpt-7b-chat, max_tokens: 2}]", "utf-8")
    requests.write_text('{"custom_id": "1", "prompt": "x"}', "utf-8")
    ended = stretto("plan", app, "--requests", requests, "--planner", "max_heuristic", "--draws", "1")
    assert ended.code == 0, ended
    assert "[/red] :smile:" in ended.out


def test_a_bad_line_is_refused_with_its_number(stretto: CommandLine, files: tuple[Path, Path]) -> None:
    app, requests = files
    requests.write_text(requests.read_text("utf-8") + '\n{"custom_id": "0", "prompt": "x"}', "utf-8")
    ended = stretto("plan", app, "--requests", requests)
    assert ended.code == 2
    assert "line 31: custom_id '0' was used in line 1" in ended.err


SKIPS = """
from stretto import Input, Template
from stretto.components import Condition, FirstPresent, LLMCall

question = Input("question", "text")
is_asked = Condition(name="is_asked", value=question, equals="why")
call = LLMCall(name="call", engine="mpt-7b-chat", prompt="{q}", q=question, when=is_asked["yes"])
best = FirstPresent(a=call["text"], b=question)
app = Template("skips", [is_asked, call, best], {"answer": best["value"]})
"""


def test_requests_of_which_none_makes_a_call_are_no_plan(stretto: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "skips.py").write_text(SKIPS, "utf-8")
    (tmp_path / "in.jsonl").write_text('{"custom_id": "a", "prompt": "no"}', "utf-8")
    refused = stretto.refuses("plan", f"{tmp_path / 'skips.py'}:app", "--requests", tmp_path / "in.jsonl")
    assert "no request makes a call in any draw" in refused
    options = ["--machine", "4xA100-80G", "--serve", "emulated", "--out", tmp_path / "out"]
    ended = stretto("run-plan", f"{tmp_path / 'skips.py'}:app", "--requests", tmp_path / "in.jsonl", *options)
    assert ended.code == 0, ended
    assert '"answer": "no"' in (tmp_path / "out").read_text("utf-8")


def test_a_prompt_beyond_the_context_is_refused_as_invalid_input(
    stretto: CommandLine, files: tuple[Path, Path]
) -> None:
    app, requests = files
    requests.write_text('{"custom_id": "long", "prompt_tokens": 3000}', "utf-8")
    ended = stretto("plan", app, "--requests", requests)
    assert ended.code == 2
    assert "in.jsonl: request 'long'" in ended.err


def test_a_search_that_is_ended_leaves_the_best_plan_so_far(
    stretto: CommandLine, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(times: RunTimes) -> Iterator[Plan]:
        yield replace(moldable_list(times), planner="so far")
        raise KeyboardInterrupt

    monkeypatch.setattr("stretto.planner.planners.stretto.improving", interrupted)
    app, requests = files
    ended = stretto("plan", app, "--requests", requests, "--draws", "1", "--seconds", "3600", "--json")
    assert ended.code == 0, ended
    assert "the search was ended; the best plan so far is shown" in ended.err
    assert json.loads(ended.out)["planner"] == "so far"


def test_what_an_app_prints_is_no_part_of_the_json(stretto: CommandLine, tmp_path: Path) -> None:
    source, requests = tmp_path / "app.py", tmp_path / "in.jsonl"
    source.write_text(
        "from stretto import programs as P\n\n\n"
        '@P.SemanticFunction(engine="mpt-7b-chat", max_tokens=9)\n'
        "def reply(question: P.SemanticVariable):\n"
        '    """{{input:question}} {{output:answer}}"""\n\n\n'
        "def answer(question):\n"
        '    print("asked")\n'
        "    return reply(question)\n",
        "utf-8",
    )
    requests.write_text('{"custom_id": "a", "prompt": "why?"}', "utf-8")
    options = ("--planner", "max_heuristic", "--draws", "1", "--json")
    ended = stretto("plan", f"{source}:answer", "--requests", requests, *options)
    assert ended.code == 0, ended
    assert json.loads(ended.out)["predicted_s"]
    assert "asked" in ended.err


def batch_line(custom_id: str, model: str, **fields: object) -> str:
    body = {"model": model, "messages": [{"role": "user", "content": "a" * 40}], **fields}
    url = "/v1/chat/completions"
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body})


@pytest.mark.parametrize("has_app", [True, False])
def test_lines_of_a_batch_file_are_planned_as_they_are_run(
    stretto: CommandLine, files: tuple[Path, Path], has_app: bool
) -> None:
    """Each has an answer of at most its own `max_tokens`; one that no run takes is left out."""
    app, requests = files
    models = ["short", "judge"] if has_app else ["mpt-7b-chat", "vicuna-13b-v1.5"]
    lines = [batch_line(f"{at}", models[at % 2], max_tokens=9) for at in range(8)]
    lines += [batch_line("bad", models[0], logprobs=True), batch_line("several", models[1], n=2)]
    requests.write_text("\n".join(lines), "utf-8")
    options = ("--requests", requests, "--planner", "max_heuristic", "--draws", "2")
    ended = stretto("plan", *([app] if has_app else []), *options, "--json")
    assert ended.code == 0, ended
    assert "warning: 1 lines are not planned: 'bad': body: " in ended.err
    plan = json.loads(ended.out)
    assert {node for span in plan["spans"] for node in span["nodes"]} == {*models}
    ended = stretto("plan", *([app] if has_app else []), *options, "--graph")
    assert f"{models[0]} (mpt-7b-chat, 4 calls" in ended.out


def test_without_an_application_lines_must_name_models(
    stretto: CommandLine, files: tuple[Path, Path]
) -> None:
    ended = stretto("plan", "--requests", files[1])
    assert ended.code == 2
    assert "'0': it has no url and body, as a Batch line has; other requests need an APP" in ended.err
