"""The command `stretto serve`, and the settings of its file."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from support.command_line import CommandLine

from stretto import Input, Template
from stretto import programs as P
from stretto.apps.template_file import template_in_file
from stretto.cli.served_engines import with_engines_of, with_usual_engines, with_vector_engines
from stretto.components import ToolCall
from stretto.engines.llms import llm_engine
from stretto.model.errors import ConfigError
from stretto.schema.tables import Tables
from stretto.service.config import Limits, ServiceConfig, read_service_config

DOCS = Path(__file__).parents[2] / "docs" / "service.md"
EXAMPLES = Path(__file__).parents[2] / "examples"


def written(text: str) -> ServiceConfig:
    return read_service_config(Tables(text, "x.toml"))


def test_the_file_of_the_documentation_can_be_read() -> None:
    found = re.search(r"```toml\n(\[service\].*?)```", DOCS.read_text("utf-8"), re.DOTALL)
    assert found is not None
    config = written(found[1])
    assert (config.port, config.max_wait_s) == (8700, 60.0)
    assert config.limits == Limits(sessions=1000, tokens_per_minute=100_000, output_tokens=8192)
    (tenant,) = config.tenant
    assert tenant.name == "physics"
    assert tenant.limits == Limits(sessions=10, variables=10_000, bytes=10_000_000, depth=1000, width=100)
    assert written("") == ServiceConfig()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[service]\nprot = 1", "x.toml:2: unknown key 'prot'"),
        ("[service]\nport = 99999", "port is 99999"),
        ("[service]\nmax_wait_s = 0", "max_wait_s is 0"),
        ("[service.limits]\nsessions = 0", "sessions is 0"),
        ("[[service.tenant]]\nname = 'a'\nkeys = []", "keys must be one or more"),
        ("[[service.tenant]]\nname = 'a'\nkeys = ['ü']", "printable ASCII"),
        (
            "[[service.tenant]]\nname = 'a'\nkeys = ['k']\n[[service.tenant]]\nname = 'b'\nkeys = ['k']",
            "twice",
        ),
    ],
)
def test_a_bad_setting_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        written(text)


def test_engines_that_embed_start_when_they_are_needed() -> None:
    usual = with_usual_engines([], ["stand-in"], None, None)
    found, spares = with_vector_engines(usual)
    engines = {engine.name: engine for engine in found}
    assert list(engines) == ["llm", "transforms", "embedding", "reranking"]
    assert (engines["embedding"].replicas, list(spares)) == ((), ["embedding"])
    assert with_vector_engines(found) == (found, {})


def test_engines_that_the_file_leaves_out_are_the_usual_ones() -> None:
    usual = with_usual_engines([], ["stand-in"], None, None)
    assert [engine.name for engine in usual] == ["llm", "transforms"]
    with pytest.raises(ConfigError, match="describes it again"):
        with_usual_engines([llm_engine("stand-in")], ["stand-in"], None, None)
    with pytest.raises(ConfigError, match="for an --llm that is a URL"):
        with_usual_engines([], ["stand-in"], "chat", None)


def test_an_app_that_calls_python_functions_is_refused() -> None:
    text = Input("text", "text")
    loud = ToolCall(function="upper", text=text)
    app = Template("loud", loud, {"loud": loud["result"]})
    with pytest.raises(ConfigError, match=r"app 'loud' calls Python functions \(engine 'calls'\)"):
        with_engines_of({"loud": app}, [llm_engine("stand-in")], None, [])


def test_an_app_with_an_op_of_its_own_is_refused() -> None:
    own = template_in_file(f"{EXAMPLES / 'own_parts.py'}:app")
    with pytest.raises(ConfigError, match=r"'own' has an op of its own \('translate', engine 'dictionary'\)"):
        with_engines_of({"own": own}, [llm_engine("stand-in")], None, [])


def test_a_port_in_use_is_refused_before_engines_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stretto = CommandLine(monkeypatch, capsys)
    monkeypatch.setattr("stretto.service.serve.run_service", lambda *_: pytest.fail("engines were started"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = stretto.refuses("serve", "--llm", "stand-in", "--port", str(port))
    assert f"port {port} of 127.0.0.1 cannot be used: it is in use" in said


@P.SemanticFunction(max_tokens=8)
def say(x: P.SemanticVariable) -> None:
    """Say {{x}}: {{output:y}}"""


@pytest.fixture(autouse=True)
def _own_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let commands keep what they learn where nobody else does."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def explained(stretto: CommandLine) -> str:
    """Return what `stretto explain` says of whose turn it is; empty if it says nothing."""
    ended = stretto("explain", "--app", "naive", "--whole")
    assert ended.code == 0, ended.err
    _, _, text = ended.out.partition("whose turn, as learned by `stretto serve`\n")
    return text.partition("depths\n")[0]


def test_what_is_learned_of_programs_is_kept_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stretto = CommandLine(monkeypatch, capsys)
    command = [sys.executable, "-m", "stretto.cli.main", "serve", "--llm", "stand-in", "--port", "0"]
    body = {"model": "llm", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}
    assert explained(stretto) == ""
    for seen in (3, 6):
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stderr is not None
                url = process.stderr.readline().split()[0]
                for _ in range(3):
                    httpx.post(f"{url}/v1/chat/completions", json=body).raise_for_status()
                process.send_signal(signal.SIGTERM)
                assert process.wait(60) == 128 + signal.SIGTERM
            finally:
                process.kill()
        engine, heads, *rows = [
            re.split("  +", line.strip()) for line in explained(stretto).splitlines() if line
        ]
        assert engine[0].startswith("llm:")
        assert heads[1:5] == ["kind of program", "work so far", "seen", "more: median"]
        assert {row[1] for row in rows} == {"call"}
        assert sum(int(row[3]) for row in rows) == seen
        assert {(row[4], row[5]) for row in rows} == {("0 s", "0 s")}, "nothing came after the one call"
    (tmp_path / "cache" / "stretto" / "learned.json").write_text("{")
    assert "is not a file of what was learned" in stretto.refuses(*command[3:])


def test_the_command_serves_until_it_is_told_to_end(tmp_path: Path) -> None:
    file = tmp_path / "engines.toml"
    file.write_text("[[service.tenant]]\nname = 'a'\nkeys = ['k']\n")
    options = ["--engines", str(file), "--llm", "stand-in", "--port", "0"]
    command = [sys.executable, "-m", "stretto.cli.main", "serve", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            url = next(line for line in process.stderr if line.startswith("http")).split()[0]
            assert httpx.get(f"{url}/health").json() == {"status": "ok"}
            with P.Client(url, api_key="k"):
                assert isinstance(say("x").get(timeout_s=60), str)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 128 + signal.SIGTERM
        finally:
            process.kill()


def test_the_command_answers_an_offline_application_beside(tmp_path: Path) -> None:
    app, requests = tmp_path / "app.yaml", tmp_path / "in.jsonl"
    app.write_text(
        "nodes:\n- {name: parts, model: llm, max_tokens: 4, map: true}\n"
        "- {name: whole, model: llm, max_tokens: 4, inputs: [parts]}\n"
    )
    requests.write_text('{"custom_id": "r", "chunks": ["one", "two"]}\n')
    options = ["--llm", "stand-in", "--port", "0", "--offline", str(requests), "--offline-app", str(app)]
    command = [sys.executable, "-m", "stretto.cli.main", "serve", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            said = next(line for line in process.stderr if line.startswith("offline"))
            assert said == "offline requests: 1 answered, 0 failed\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 128 + signal.SIGTERM
        finally:
            process.kill()
    answers = json.loads((tmp_path / "in.jsonl.answers").read_text("utf-8"))["response"]["body"]["answers"]
    assert [len(answers["parts"]), type(answers["whole"])] == [2, str]


def test_a_second_interrupt_cuts_the_requests_that_are_open(tmp_path: Path) -> None:
    file = tmp_path / "engines.toml"
    file.write_text("[service]\nmax_wait_s = 1000.0\ngrace_s = 1000.0\n")
    options = ["--engines", str(file), "--llm", "stand-in", "--port", "0"]
    command = [sys.executable, "-m", "stretto.cli.main", "serve", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            url = httpx.URL(process.stderr.readline().split()[0])
            body = {"wanted": {"never": None}}
            session = httpx.post(url.join("/v1/submit"), json=body).json()["session_id"]
            content = json.dumps({"session_id": session, "semantic_var_id": "never"})
            head = f"POST /v1/get HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n"
            with socket.create_connection((url.host, url.port or 0)) as connection:
                connection.sendall(head.encode() + content.encode())
                for _ in range(2):  # when these are answered, the request before them has been read
                    httpx.get(url.join("/health"))
                process.send_signal(signal.SIGINT)
                assert process.stderr.readline().startswith("finishes 1 request ")
                process.send_signal(signal.SIGTERM)  # the same one so soon would count as one
                assert process.wait(60) == 128 + signal.SIGINT
                assert process.stderr.read() == "interrupted\n"
        finally:
            process.kill()
