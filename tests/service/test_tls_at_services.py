"""A service answers in TLS, with certificates that are read anew; it asks workers as a router does."""

from __future__ import annotations

import os
from pathlib import Path

import httpx
import pytest

pytest.importorskip("cryptography", reason="certificates of tests are made by cryptography")
from support.certificates import Authority
from support.services import served

from stretto.cli.served_workers import pool_of
from stretto.engines.catalogue import transforms_engine
from stretto.engines.llms import STAND_IN, llm_engine
from stretto.http.tls import ServerTls
from stretto.model.errors import ConfigError
from stretto.operate.watch import Watch
from stretto.schema.tables import Tables
from stretto.service.config import ServiceConfig

CHAT = {"model": "llm", "messages": [{"role": "user", "content": "Say this."}]}


def test_a_service_answers_in_tls_and_shows_a_renewed_certificate(tmp_path: Path) -> None:
    authority, watch = Authority(tmp_path), Watch()
    certificate, key = authority.sign("expired", days=-1)
    config = ServiceConfig(port=0, tls=ServerTls(certificate=certificate, key=key))
    with (
        served([llm_engine(STAND_IN), transforms_engine()], config, watch=watch) as (_, url),
        httpx.Client(base_url=url, timeout=60, verify=authority.believing()) as client,
    ):
        assert url.startswith("https://")
        with pytest.raises(httpx.ConnectError, match="expired"):
            client.get("/health")
        for file, other in zip((certificate, key), authority.sign("renewed"), strict=True):
            os.replace(other, file)
        watch.certificates.look()
        assert client.post("/v1/chat/completions", json=CHAT).status_code == 200
        with client.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as answer:
            assert list(answer.iter_lines())[-2:] == ["data: [DONE]", ""]
        assert (
            f'stretto_certificate_expires_timestamp_seconds{{file="{certificate}"}}'
            in client.get("/metrics").text
        )


def test_settings_of_tls_at_a_service_are_checked_and_those_of_options_go_first(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.sign("router")
    worker, pair = "https://127.0.0.1:9", f'certificate = "{certificate}", key = "{key}"'

    def refused(text: str) -> str:
        with pytest.raises(ConfigError) as error:
            pool_of([worker], Tables(text, "x.toml"), ServiceConfig(), print, None)
        return str(error.value)

    assert "put it into [service]" in refused(f"[router]\ntls = {{ {pair} }}")
    assert "x.toml:2" in refused('[router]\nworker_tls = { ca = "absent" }')
    tables = Tables(f"[router]\nworker_tls = {{ {pair} }}", "x.toml")
    given = str(authority.file), None, None
    assert pool_of([worker], tables, ServiceConfig(), print, None, None, given) is not None
