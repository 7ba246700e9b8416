"""Keys of tenants as hashes, tenants that come and go in a running service, limits of a minute, and usage."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stretto.cli.commands import app
from stretto.http.refusals import Refused
from stretto.model.errors import ConfigError, JournalError
from stretto.sched.request_trace import RequestTrace
from stretto.schema.tables import Tables
from stretto.service.api_keys import KeyTable, hashed_key, is_hash, new_key
from stretto.service.config import Limits, ServiceConfig, TenantConfig, read_service_config
from stretto.service.tenants import Tenants
from stretto.service.tenants_watch import follow_tenants
from stretto.service.usage_book import DayUsage, UsageBook, read_usage


def tenant(name: str, *keys: str, **limits: float) -> TenantConfig:
    return TenantConfig(name=name, keys=keys, limits=Limits(**limits) if limits else None)  # type: ignore[arg-type]


def found(tenants: Tenants, key: str) -> str | None:
    """Return the name of the tenant that a key belongs to; None if it is unknown."""
    with suppress(Refused):
        return tenants.find(f"Bearer {key}").name
    return None


def test_a_hash_says_nothing_of_its_key_and_finds_its_owner() -> None:
    key, other = new_key(), new_key()
    first, second = hashed_key(key), hashed_key(key)
    assert first != second
    assert is_hash(first)
    assert key not in first
    table: KeyTable[str] = KeyTable()
    table.add(first, "a")
    table.add(hashed_key(other), "b")
    table.add("plain", "c")
    for _ in range(2):
        assert [table.find(one) for one in (key, other, "plain")] == ["a", "b", "c"]
        assert table.find(first) is table.find("") is table.find("Plain") is None


@pytest.mark.parametrize("key", ["sha256:", "sha256:ab:cd", "sha256:" + "g" * 32 + ":" + "0" * 64])
def test_what_looks_like_a_hash_and_is_none_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=r": keys\[0\] is no hash of a key"):
        tenant("a", key)


def test_an_error_of_the_engines_file_names_its_line_and_no_key() -> None:
    one = '[[service.tenant]]\nname = "a"\nkeys = '
    tables = Tables(f'{one}["k"]\n{one}"sk-1"\n', "file")
    with pytest.raises(ConfigError, match=r"^file:6: .*keys must be a list, each a text$"):
        read_service_config(tables)
    assert "sk-1" not in repr(tenant("a", "sk-1"))


def test_keys_are_rotated_and_tenants_come_and_go() -> None:
    old, new = new_key(), new_key()
    tenants = Tenants(ServiceConfig(tenant=(tenant("a", hashed_key(old)), tenant("b", "bb"))))
    before = tenants.named("a")
    tenants.replace(ServiceConfig(tenant=(tenant("a", hashed_key(new), sessions=3), tenant("c", "cc"))))
    assert [found(tenants, key) for key in (old, new, "bb", "cc")] == [None, "a", None, "c"]
    assert tenants.named("a") is before
    assert before is not None
    assert before.limits.sessions == 3
    assert tenants.named("b") is None
    with pytest.raises(ConfigError, match="the last one goes"):
        tenants.replace(ServiceConfig())
    with pytest.raises(ConfigError, match="first tenant comes"):
        Tenants(ServiceConfig()).replace(ServiceConfig(tenant=(tenant("a", "aa"),)))


def test_requests_of_a_minute_are_limited() -> None:
    one = Tenants(ServiceConfig(limits=Limits(requests_per_minute=2))).find("")
    one.count_request(0.0)
    one.count_request(1.0)
    with pytest.raises(Refused, match="2 are allowed in a minute") as error:
        one.count_request(2.0)
    assert error.value.retry_after_s == pytest.approx(29.0, abs=1.1)
    one.count_request(31.0)
    one.limit(Limits(requests_per_minute=60))
    one.count_request(32.0)
    one.limit(Limits())
    for _ in range(100):
        one.count_request(32.0)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


def test_a_file_that_changes_changes_the_tenants_unless_it_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "engines.toml"

    def write(text: str) -> None:
        fresh = file.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(file)

    def keys(key: str) -> str:
        return f"[[service.tenant]]\nname = 'a'\nkeys = ['{key}']\n"

    async def run() -> None:
        said: list[str] = []
        tenants = Tenants(ServiceConfig(tenant=(tenant("a", "old"),)))
        write(keys("old"))
        task = asyncio.create_task(follow_tenants(file, tenants, said.append, look_s=0.005))
        write(keys("new"))
        await until(lambda: found(tenants, "new") == "a")
        assert found(tenants, "old") is None
        write("[service")
        await until(lambda: any("the tenants stay as they were" in line for line in said))
        file.unlink()
        assert found(tenants, "new") == "a"
        write(keys("third"))
        await until(lambda: found(tenants, "third") == "a")
        task.cancel()

    asyncio.run(run())


def test_the_command_makes_keys() -> None:
    runner = CliRunner()
    lines = dict(line.split(": ") for line in runner.invoke(app, ["keys"]).output.splitlines())
    table: KeyTable[str] = KeyTable()
    table.add(lines["hash"].strip(), "a")
    assert table.find(lines["key"].strip()) == "a"
    made = runner.invoke(app, ["keys", "hash"], input="own\n").output.strip()
    table.add(made, "b")
    assert table.find("own") == "b"
    assert isinstance(runner.invoke(app, ["keys", "hash"], input="two keys").exception, ConfigError)
    assert isinstance(runner.invoke(app, ["keys", "old"]).exception, ConfigError)


def ended(tenant: str, *tokens: int | None) -> RequestTrace:
    trace = RequestTrace("r", "/v1/chat/completions", 0.0, tenant=tenant)
    trace.prompt_tokens, trace.cached_tokens, trace.output_tokens = tokens
    return trace


def test_usage_is_kept_by_day_and_tenant_and_exported(tmp_path: Path) -> None:
    day = "2026-11-26"

    async def run(*traces: RequestTrace) -> None:
        async with UsageBook(tmp_path, lambda: day) as book:
            for trace in traces:
                book.on_request_ended(trace, 1.0)

    asyncio.run(run(ended("a", 10, 4, 2), ended("a", None, None, None), ended("b", 2**40, -1, 1)))
    asyncio.run(run(ended("a", 1, 0, 1)))
    day = "2026-11-27"
    asyncio.run(run(ended("a", 5, 0, 5)))
    expected = [
        DayUsage("2026-11-26", "a", 3, 11, 4, 3),
        DayUsage("2026-11-26", "b", 1, 0, 0, 1),
        DayUsage("2026-11-27", "a", 1, 5, 0, 5),
    ]
    assert read_usage(tmp_path) == expected
    runner = CliRunner()
    table = list(csv.reader(io.StringIO(runner.invoke(app, ["usage", "--state", str(tmp_path)]).output)))
    assert table == [list(DayUsage._fields), *([str(part) for part in row] for row in expected)]
    lines = runner.invoke(app, ["usage", "--state", str(tmp_path), "--json"]).output.splitlines()
    assert [json.loads(line) for line in lines] == [row._asdict() for row in expected]
    with pytest.raises(JournalError, match="no usage is kept here; is it the folder of"):
        read_usage(tmp_path / "none")
