"""Names that stand for models."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.routing import StubServer, routing, run

from stretto.model.errors import ConfigError
from stretto.router.aliases import AliasConfig, Aliases, read_alias
from stretto.router.config_file import read_router_config

BOTH = AliasConfig(name="both", models={"m": 3, "other": 1})


def everything(model: str) -> bool:
    return True


def test_an_alias_is_read_from_a_text() -> None:
    assert read_alias("gpt=qwen") == AliasConfig(name="gpt", models={"qwen": 1.0})
    assert read_alias("gpt=llama3:8b:2,qwen:0.5, x").models == {"llama3:8b": 2.0, "qwen": 0.5, "x": 1.0}


@pytest.mark.parametrize("text", ["gpt", "=m", "gpt=", "gpt=m,m", "gpt=m:0", "gpt=m,,n"])
def test_what_is_no_alias_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="alias"):
        read_alias(text)


def test_aliases_stand_in_the_file_too(tmp_path: Path) -> None:
    file = tmp_path / "router.toml"
    file.write_text('[router]\n[[router.alias]]\nname = "gpt"\nmodels = { "qwen" = 9, "llama" = 1.5 }\n')
    assert read_router_config(file).alias == (AliasConfig(name="gpt", models={"qwen": 9, "llama": 1.5}),)
    file.write_text(file.read_text() + '[[router.alias]]\nname = "gpt"\nmodels = { "x" = 1 }\n')
    with pytest.raises(ConfigError, match="given twice"):
        read_router_config(file)


def test_models_get_shares_by_weight_and_programs_stay() -> None:
    aliases = Aliases([BOTH])
    chosen = [aliases.choose("both", str(number), everything) for number in range(1, 401)]
    assert Counter(chosen)["m"] == pytest.approx(300, abs=3)
    assert [aliases.choose("both", str(number), everything) for number in range(1, 401)] == chosen
    plain = Counter(aliases.choose("both", "", everything) for _ in range(400))
    assert plain["m"] == pytest.approx(300, abs=3)


def test_a_model_without_a_worker_is_left_out() -> None:
    aliases = Aliases([BOTH])
    chosen = {aliases.choose("both", str(number), lambda model: model == "other") for number in range(9)}
    assert chosen == {"other"}


def test_requests_go_to_the_model_and_only_its_name_changes() -> None:
    async def main() -> None:
        other = StubServer(model="other")
        await other.open()
        alias = (BOTH, AliasConfig(name="chat\u00e9", models={"other": 1}))
        async with routing("well", urls=(other.url,), alias=alias) as at:
            for number in range(40):
                assert (await at.ask(model="both", prompt=f"question {number}")).status_code == 200
            servers = at.servers[0], other
            assert len(servers[0].asked) == pytest.approx(30, abs=2)
            for server in servers:
                assert {json.loads(asked.body)["model"] for asked in server.asked} == {server.model}
            body = b'{ "prompt": "caf\xc3\xa9",  "model" : "chat\xc3\xa9", "x": 1.50 }'
            await at.client.post("/v1/completions", content=body)
            assert other.asked[-1].body == b'{ "prompt": "caf\xc3\xa9",  "model" : "other", "x": 1.50 }'
            plain = b'{ "model" : "other",  "prompt": "x" }'
            await at.client.post("/v1/completions", content=plain)
            assert other.asked[-1].body == plain
        other.kill()

    run(main())


def test_a_session_stays_at_its_model() -> None:
    async def main() -> None:
        other = StubServer(model="other")
        await other.open()
        alias = (AliasConfig(name="both", models={"m": 1, "other": 1}),)
        async with routing("well", urls=(other.url,), alias=alias) as at:
            for session in ("a", "b", "c", "d"):
                headers = {"x-session-id": session}
                content = json.dumps({"model": "both", "prompt": "Hello"})
                for _ in range(3):
                    await at.client.post("/v1/completions", content=content, headers=headers)
            for server in (at.servers[0], other):
                sessions = Counter(asked.headers[b"x-session-id"] for asked in server.asked)
                assert len(sessions) == 2
                assert set(sessions.values()) == {3}
        other.kill()

    run(main())


def test_the_model_of_a_form_is_renamed() -> None:
    async def main() -> None:
        alias = (AliasConfig(name="whisper", models={"m": 1}),)
        async with routing("well", alias=alias) as at:
            form = (
                b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\n%b\r\n'
                b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\n\x00\xff\r\n--b--\r\n'
            )
            kind = {"content-type": "multipart/form-data; boundary=b"}
            await at.client.post("/v1/audio/transcriptions", content=form % b"whisper", headers=kind)
            (asked,) = at.servers[0].asked
            assert asked.body == form % b"m"

    run(main())


def test_aliases_are_listed_while_a_worker_has_their_model() -> None:
    async def main() -> None:
        alias = (BOTH, AliasConfig(name="nobodys", models={"x": 1}))
        async with routing("well", alias=alias) as at:
            listed: dict[str, Any] = (await at.client.get("/v1/models")).json()
            assert {one["id"]: one.get("root") for one in listed["data"]} == {"m": None, "both": "m"}
            assert (await at.client.get("/v1/models/both")).json() == {"id": "both", "root": "m"}

    run(main())
