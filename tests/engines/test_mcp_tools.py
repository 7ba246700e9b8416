"""The tools of a real MCP server: the official SDK's, over its input and output, and over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stretto import Runtime
from stretto.apps import agent
from stretto.components import AgentRun, Tool, tool
from stretto.engines.batch.tools import Tools, ToolsConfig
from stretto.engines.catalogue import tools_engine
from stretto.engines.mcp_tools import MCPServer, MCPTools
from stretto.engines.scripted.engine import ScriptedLLM
from stretto.model.deployment import deploy
from stretto.model.errors import ConfigError, EngineUnavailable
from stretto.model.extras import is_installed
from stretto.model.tasks import Decode, LLMTask, Task
from stretto.model.tools import ToolResult

needs_sdk = pytest.mark.skipif(not is_installed("mcp"), reason="the package mcp is not installed")

ENV = {"PYTHONPATH": os.pathsep.join(sys.path)}
SERVER = '''
import sys

from mcp.server import MCPServer
from mcp.types import ToolAnnotations

server = MCPServer("notes")
notes = []


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def note(text: str) -> str:
    """Keep a text."""
    notes.append(text)
    return f"{len(notes)} notes"


@server.tool()
def fail() -> str:
    """Fail."""
    raise ValueError("nothing works")


if __name__ == "__main__":
    if sys.argv[1:]:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run()
'''


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "server.py"
    path.write_text(SERVER)
    return path


@pytest.fixture(params=["command", "url"])
def server(request: pytest.FixtureRequest, script: Path) -> Iterator[MCPServer]:
    if request.param == "command":
        yield MCPServer(command=[sys.executable, str(script)], env=ENV)
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen([sys.executable, str(script), str(port)]) as process:
        try:
            _wait(port, process)
            yield MCPServer(url=f"http://127.0.0.1:{port}/mcp", headers={"X-Test": "1"})
        finally:
            process.terminate()


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 60).close()
        except OSError:
            continue
        return
    pytest.fail("the server has ended")


def call(tools: tuple[Tool, ...], name: str, **arguments: object) -> ToolResult:
    engine = Tools(ToolsConfig(tools))
    try:
        written = json.dumps({"name": name, "arguments": arguments})
        (result,) = engine.run([Task(1, "q", "results", "call", {"call": written}, {})])
    finally:
        engine.close()
    assert isinstance(result, ToolResult)
    return result


@needs_sdk
def test_the_tools_of_a_server_are_tools(server: MCPServer) -> None:
    with MCPTools(server) as tools:
        known = {one.name: one for one in tools}
        assert {name: one.effects for name, one in known.items()} == {
            "add": False,
            "note": True,
            "fail": True,
        }
        assert known["add"].description == "Add two numbers."
        assert set(known["add"].parameters["properties"]) == {"a", "b"}
        assert call(tools, "add", a=1, b=2).text == "3"
        assert call(tools, "note", text="x").text == "1 notes"
        assert call(tools, "note", text="y").text == "2 notes"
        assert call(tools, "fail").outcome == "failed"
        assert "Error executing tool fail" in call(tools, "fail").text
        assert call(tools, "add", a="one").outcome == "failed"
    assert "the connection has ended" in call(tools, "add", a=1, b=2).text


@needs_sdk
def test_an_agent_calls_a_servers_tools_beside_its_own(script: Path) -> None:
    @tool
    def double(number: int) -> int:
        return 2 * number

    def write(task: LLMTask, decode: Decode) -> str:
        if any(segment.tools is not None for segment in task.prompt):
            return "[]" if decode.items else "7 and 8"
        calls = [("s_add", {"a": 3, "b": 4}), ("double", {"number": 4})]
        return json.dumps([{"name": name, "arguments": given} for name, given in calls])

    llm = deploy("llm", lambda config: ScriptedLLM(write, 4), contract="llm", keeps_state=True)
    server = MCPServer(command=[sys.executable, str(script)], env=ENV, prefix="s_", effects=False)

    async def main() -> AgentRun:
        with MCPTools(server) as served:
            tools = [*served, double]
            async with Runtime([llm, tools_engine(tools)]) as runtime:
                outputs = await runtime.run(agent(tools), {"question": "What are 3 + 4 and 2 x 4?"})
        run = outputs["run"]
        assert isinstance(run, AgentRun)
        return run

    run = asyncio.run(main())
    assert [one.text for one in run.calls] == ["7", "8"]
    assert run.answer == "7 and 8"


@needs_sdk
def test_a_server_that_cannot_be_started_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(EngineUnavailable, match="no-such-program"),
        MCPTools(MCPServer(command=["no-such-program"])),
    ):
        pass
    quiet = MCPServer(command=["sleep", "600"], start_s=0.2)
    with pytest.raises(EngineUnavailable, match="no list of tools within"), MCPTools(quiet):
        pass


def test_a_server_has_a_command_or_a_url() -> None:
    for given in ({}, {"command": ["a"], "url": "http://b"}):
        with pytest.raises(ConfigError, match="either a command or a url"):
            MCPServer(**given)  # type: ignore[arg-type]


@pytest.mark.skipif(is_installed("mcp"), reason="the package mcp is installed")
def test_without_the_package_its_extra_is_named() -> None:
    with pytest.raises(ConfigError, match=r"stretto\[mcp\]"), MCPTools(MCPServer(command=["a"])):
        pass
