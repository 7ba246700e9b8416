"""The command `stretto route`."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import httpx
import pytest
from support.routing import WHOLE, StubServer, run

from stretto.cli.route import route
from stretto.errors import ConfigError, UserError


def test_the_command_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    async def main() -> None:
        server = StubServer()
        await server.open()
        command = (sys.executable, "-m", "stretto.cli.main", "route", "--worker", server.url, "--port", "0")
        process = await asyncio.create_subprocess_exec(
            *command, "--record", str(tmp_path / "log"), stderr=asyncio.subprocess.PIPE
        )
        assert process.stderr is not None
        line = (await process.stderr.readline()).decode()
        assert line.endswith("1 worker, placement least_loaded\n")
        async with httpx.AsyncClient(base_url=line.split()[0], timeout=60) as client:
            reply = await client.post("/v1/completions", json={"prompt": "Hello"})
            assert reply.content == WHOLE
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 128 + signal.SIGTERM
        assert '"status":200' in (tmp_path / "log").read_text()
        server.kill()

    run(main())


def test_wrong_options_are_refused_before_the_start(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="give the servers with --worker"):
        route()
    with pytest.raises(ConfigError, match="there is no placement 'by_taste'"):
        route(["http://a"], placement="by_taste")
    with pytest.raises(ConfigError, match="must be a URL"):
        route(["a:80"])
    with pytest.raises(ConfigError, match="cannot be read"):
        route(config=tmp_path / "absent.toml")
    with pytest.raises(ConfigError, match="cannot be written"):
        route(["http://127.0.0.1:1"], port=0, record=tmp_path / "absent" / "log")
