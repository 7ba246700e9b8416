"""Does each extra of the installed package bring all that its page promises?

    python -m checks.extras_check --torch "torch==2.13.0"

Builds the wheel and makes an environment for each extra, in `.venv-extras/`, with the wheel and that extra
alone. Runs there what the first command of the extra's page runs. Environments are kept and used again; the
wheel in them is replaced each time. Prints a line for each extra. Exit code 1 if a command fails.

Needs pip, the package index that pip is configured with, and about 6 GB. Uses the standard library alone.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CLONE = Path(__file__).resolve().parents[1]
ENVIRONMENTS = CLONE / ".venv-extras"
LIMIT_S = 300.0
"""Longest time of a command."""
WITH_TORCH = ("local", "structured")
_ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+")

SEMANTIC = '''
import sys
from stretto import programs as P

@P.SemanticFunction(max_tokens=8)
def summarise(part: P.SemanticVariable) -> None:
    """Summarise this text in one sentence: {{part}} Summary: {{output:summary}}"""

with P.Client(sys.argv[1]):
    print(summarise("The captain lived at the inn.").get("latency"))
'''
TRANSFORM = """
from stretto import Runtime
from stretto import programs as P
from stretto.engines.catalogue import transforms_engine
from stretto.engines.llms import llm_engine

with Runtime([llm_engine("stand-in"), transforms_engine()]) as runtime, P.Client(runtime):
    found = P.transform(P.SemanticVariable("xabbb"), 'regex "a(b+)"').get("latency")
assert found == "bbb", found
"""
KUBERNETES = """
import json, os, pathlib
from stretto.model.errors import EngineUnavailable
from stretto.router.discovery.kubernetes_api import EndpointApi
from stretto.router.found_workers import KubernetesConfig

named = {"name": "c", "user": {}, "context": {"cluster": "c", "user": "c"}}
named["cluster"] = {"server": "http://127.0.0.1:9"}
config = {"current-context": "c", "clusters": [named], "contexts": [named], "users": [named]}
pathlib.Path("kubeconfig").write_text(json.dumps(config))
os.environ["KUBECONFIG"] = "kubeconfig"
try:
    EndpointApi(KubernetesConfig(selector="app=vllm")).list_slices()
except EngineUnavailable as error:
    assert "gave no answer" in error.message, error
else:
    raise AssertionError("nobody is there")
"""
STRUCTURED = """
from stretto import Input, Runtime, Template
from stretto.components import LLMCall
from stretto.engines.llms import llm_engine

SCHEMA = '{"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 2, "maxItems": 2}'
call = LLMCall(prompt="Question: {question}\\nAnswer:", question=Input("question", "text"), max_tokens=64,
               as_list=True, json_schema=SCHEMA)
app = Template("listed", call, outputs={"items": call["text"]})
with Runtime([llm_engine(None)]) as runtime:
    items = runtime.run_sync(app, {"question": "Where did the captain live?"})["items"]
assert len(items) == 2 and all(isinstance(item, str) for item in items), items
"""
MCP = """
import pathlib, sys
from stretto.engines.mcp_tools import MCPServer, MCPTools

SERVER = '''
from mcp.server import MCPServer
server = MCPServer("adder")

@server.tool()
def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b

server.run()
'''
path = pathlib.Path("adder.py")
path.write_text(SERVER)
with MCPTools(MCPServer(command=[sys.executable, str(path)])) as tools:
    assert [tool.name for tool in tools] == ["add"], tools
"""
OFFICE = """
import docx
from stretto import load_documents

written = docx.Document()
written.add_heading("The harbour")
written.save("harbour.docx")
(read,) = load_documents(["harbour.docx"])
assert read.sections[0].title == "The harbour"
"""
RAY = """
from ray.cluster_utils import Cluster
from stretto import Input, Runtime, Template, deploy
from stretto.components import ToolCall
from stretto.engines.batch.calls import Calls, CallsConfig

def twice(text: str) -> str:
    return text + text

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "object_store_memory": 80 * 2**20})
try:
    call = ToolCall(function="twice", text=Input("text", "text"))
    app = Template("twice", call, outputs={"result": call["result"]})
    calls = deploy("calls", Calls, CallsConfig({"twice": twice}), runs_in="ray")
    with Runtime([calls], ray_address=cluster.address) as runtime:
        assert runtime.run_sync(app, {"text": "ab"})["result"] == "abab"
finally:
    cluster.shutdown()
"""
PLAN = "nodes:\n  - {name: writer, model: vicuna-13b-v1.5, max_tokens: 64}\n"
REQUESTS = "".join(f'{{"custom_id": "{i}", "prompt": "Where did the captain live?"}}\n' for i in range(4))
TRACE = '{"input_length": 50, "output_length": 4, "timestamp": 0}\n'
ROUTER = '[[router.worker]]\nurl = "{url}"\nkv_events = {{ endpoint = "tcp://127.0.0.1:9" }}\n'


class Failed(Exception):
    """A command did not do what it should."""


@dataclass(frozen=True)
class Environment:
    """An environment with the wheel and one extra.

    Attributes:
        folder: folder of the environment.
        work: folder for the files of its commands.
        server: URL of a server that speaks OpenAI's API, for commands that need one; empty if none runs.
    """

    folder: Path
    work: Path
    server: str

    def run(self, program: str, *arguments: object) -> str:
        """Run a program of the environment to its end; return its output. Raises Failed."""
        command = [str(self.folder / "bin" / program), *map(str, arguments)]
        ended = subprocess.run(
            command, cwd=self.work, env=self._variables(), capture_output=True, text=True, timeout=LIMIT_S
        )
        if ended.returncode:
            raise Failed(f"{shlex.join(command)}: exit code {ended.returncode}\n{ended.stdout}{ended.stderr}")
        return ended.stdout

    def run_code(self, code: str, *arguments: object) -> None:
        """Run a program in Python. Raises Failed."""
        path = self.file("program.py", code)
        self.run("python", path, *arguments)

    def file(self, name: str, text: str) -> Path:
        """Write a file for a command; return its path."""
        path = self.work / name
        path.write_text(text, "utf-8")
        return path

    @contextmanager
    def serving(self, *arguments: object) -> Iterator[str]:
        """Context manager that runs `stretto` with these arguments; gives its URL. Raises Failed."""
        command = [str(self.folder / "bin" / "stretto"), *map(str, arguments)]
        log = self.work / f"{arguments[0]}.log"
        with log.open("wb") as written:
            server = subprocess.Popen(
                command, cwd=self.work, env=self._variables(), stdout=written, stderr=written
            )
        try:
            yield _address(server, log)
        finally:
            server.terminate()
            server.wait(30)

    def _variables(self) -> Mapping[str, str]:
        """Return the variables of a command: those of this process, with folders of its own."""
        variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        return {**variables, "XDG_DATA_HOME": str(self.work), "XDG_CACHE_HOME": str(self.work)}


def _address(server: subprocess.Popen[bytes], log: Path) -> str:
    """Return the URL that a server prints when it listens. Raises Failed."""
    end_s = time.monotonic() + LIMIT_S
    while time.monotonic() < end_s:
        text = log.read_text("utf-8", errors="replace")
        if found := _ADDRESS.search(text):
            return found[0]
        if server.poll() is not None:
            break
        time.sleep(0.1)
    raise Failed(f"the server does not listen: {log.read_text('utf-8', errors='replace')}")


def _post(url: str, body: Mapping[str, object]) -> object:
    """Return the JSON answer to a request. Tries again for as long as a server loads. Raises Failed."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    for _ in range(100):
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code != 503:
                raise Failed(f"{url}: {error.code} {error.read()!r}") from error
        except OSError as error:
            last = error
        time.sleep(0.2)
    raise Failed(f"{url}: {last}")


def _complete(url: str) -> None:
    """Ask a server for a completion. Raises Failed."""
    _post(f"{url}/v1/completions", {"model": "llama-2-7b", "prompt": "Hello", "max_tokens": 4})


EMULATE = ("emulate", "--model", "llama-2-7b", "--device", "A100-80G", "--port", 0, "--loading-s", 0)


def _emulate(env: Environment) -> str:
    with env.serving(*EMULATE) as url:
        _complete(url)
    return "stretto emulate --model llama-2-7b --device A100-80G, a completion"


def _route(env: Environment) -> str:
    with env.serving("route", "--worker", env.server, "--port", 0) as url:
        _complete(url)
    return "stretto route --worker URL, a completion through it"


def _kubernetes(env: Environment) -> str:
    env.run_code(KUBERNETES)
    return "a list of the EndpointSlices of an API that is away"


def _kv_events(env: Environment) -> str:
    config = env.file("router.toml", ROUTER.format(url=env.server))
    with env.serving("route", "--config", config, "--port", 0) as url:
        _complete(url)
    return "stretto route --config with kv_events, a completion through it"


def _service(env: Environment) -> str:
    with env.serving("serve", "--llm", env.server, "--port", 0) as url:
        with urllib.request.urlopen(f"{url}/health", timeout=30) as answer:
            answer.read()
        _post(f"{url}/v1/sessions", {})
    return "stretto serve --llm URL, /health and a session"


def _client(env: Environment) -> str:
    env.run("stretto", "load", env.file("trace.jsonl", TRACE), "--url", env.server)
    service = Environment(ENVIRONMENTS / "service", env.work, env.server)
    with service.serving("serve", "--llm", env.server, "--port", 0) as url:
        env.run_code(SEMANTIC, url)
    return "a program with P.Client(URL) at a service; stretto load"


def _local(env: Environment) -> str:
    documents = CLONE / "examples" / "documents"
    env.run("stretto", "models", "add", "smollm2")
    env.run("stretto", "ask", "--docs", documents, "When did the guild move in?")
    return "stretto models add smollm2; stretto ask --docs examples/documents QUESTION"


def _structured(env: Environment) -> str:
    env.run("stretto", "models", "add", "smollm2")
    env.run_code(STRUCTURED)
    return "a program with LLMCall(json_schema=...) on the default model"


def _transforms(env: Environment) -> str:
    env.run_code(TRANSFORM)
    return 'a program with the transform regex "a(b+)"'


def _planner(env: Environment) -> str:
    app, requests = env.file("app.yaml", PLAN), env.file("in.jsonl", REQUESTS)
    env.run("stretto", "plan", app, "--requests", requests, "--machine", "8xA100-80G")
    return "stretto plan app.yaml --requests in.jsonl"


def _postgres(env: Environment) -> str:
    env.run("stretto", "collections")
    return "stretto collections"


def _ray(env: Environment) -> str:
    env.run_code(RAY)
    return 'a program with runs_in="ray" on a cluster of one node'


def _mcp(env: Environment) -> str:
    env.run_code(MCP)
    return "a program with a tool of an MCP server"


def _office(env: Environment) -> str:
    env.run_code(OFFICE)
    return "a program that reads a Word file"


COMMANDS: Mapping[str, Callable[[Environment], str]] = {
    "emulate": _emulate,
    "route": _route,
    "kubernetes": _kubernetes,
    "service": _service,
    "client": _client,
    "kv-events": _kv_events,
    "transforms": _transforms,
    "planner": _planner,
    "postgres": _postgres,
    "ray": _ray,
    "local": _local,
    "structured": _structured,
    "mcp": _mcp,
    "office": _office,
}
"""What is run in the environment of each extra; returns what was run, in words."""
NEEDS_SERVER = ("route", "service", "client", "kv-events")


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this clone in `folder`; return its path."""
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            "--wheel-dir",
            str(folder),
            str(CLONE),
        ],
        check=True,
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(extra: str, wheel: Path, torch: str) -> Path:
    """Make the environment of an extra, or replace the wheel in it; return its folder."""
    folder = ENVIRONMENTS / extra
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-compile"]
    if not folder.is_dir():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        if extra in WITH_TORCH:
            subprocess.run([*pip, *shlex.split(torch)], check=True)
    subprocess.run([*pip, f"{wheel}[{extra}]"], check=True)
    subprocess.run([*pip, "--force-reinstall", "--no-deps", str(wheel)], check=True)
    return folder


def main() -> int:
    """Check the extras that the command line names, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("extras", nargs="*", help=f"extras to check, of {', '.join(COMMANDS)}; default: all")
    parser.add_argument("--torch", default="torch", help="what pip installs as torch, before the rest")
    options = parser.parse_args()
    extras = options.extras or list(COMMANDS)
    if unknown := [extra for extra in extras if extra not in COMMANDS]:
        parser.error(f"there is no extra {unknown[0]!r}; there are {', '.join(COMMANDS)}")
    servers = [extra for extra in ("emulate", "service") if set(extras) & set(NEEDS_SERVER)]
    num_failed = 0
    with tempfile.TemporaryDirectory(prefix="stretto-extras-") as name:
        work = Path(name)
        wheel = build_wheel(work)
        for extra in servers:
            install(extra, wheel, options.torch)
        for extra in extras:
            print(f"{extra}: ", end="", flush=True)
            if extra not in servers:
                install(extra, wheel, options.torch)
            begin_s = time.monotonic()
            try:
                print(f"{_checked(extra, work)} ({time.monotonic() - begin_s:.0f} s)", flush=True)
            except (Failed, subprocess.TimeoutExpired) as error:
                num_failed += 1
                print(f"FAILED\n{error}", flush=True)
    return min(1, num_failed)


def _checked(extra: str, work: Path) -> str:
    """Run the commands of an extra, beside an emulated server if they need one; return them in words."""
    folder = work / extra
    folder.mkdir()
    if extra not in NEEDS_SERVER:
        return COMMANDS[extra](Environment(ENVIRONMENTS / extra, folder, ""))
    emulate = Environment(ENVIRONMENTS / "emulate", folder, "")
    with emulate.serving(*EMULATE) as url:
        return COMMANDS[extra](Environment(ENVIRONMENTS / extra, folder, url))


if __name__ == "__main__":
    sys.exit(main())
