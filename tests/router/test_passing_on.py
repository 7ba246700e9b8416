"""What clients and workers send passes through the router byte for byte."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import httpx
import pytest
from support.emulated import fleet_of
from support.routing import DONE, EVENTS, STREAM, WHOLE, StubServer, routing, run, until

from stretto.emulate.serve import EmulatedServers
from stretto.router.routes import is_passed_on, read_target


def test_a_whole_answer_is_the_workers_byte_for_byte() -> None:
    async def main() -> None:
        async with routing("well") as at:
            reply = await at.ask()
            assert (reply.status_code, reply.content) == (200, WHOLE)
            assert reply.headers["x-own"] == "1"
            assert reply.headers["x-stretto-worker"] == "0"

    run(main())


def test_a_whole_answer_without_a_length_is_read_too() -> None:
    async def main() -> None:
        async with routing("chunks") as at:
            reply = await at.ask()
            assert reply.content == WHOLE
            assert reply.headers["content-length"] == str(len(WHOLE))
            assert await at.total("stretto_cached_tokens_total") == 32

    run(main())


def test_a_stream_is_the_workers_byte_for_byte_whatever_its_parts() -> None:
    async def main() -> None:
        async with routing("well") as at:
            reply = await at.ask(stream=True)
            assert reply.content == STREAM
            assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"

    run(main())


def test_a_stream_arrives_while_the_worker_still_writes() -> None:
    async def main() -> None:
        async with (
            routing("waits") as at,
            at.client.stream("POST", "/v1/completions", content=_stream()) as reply,
        ):
            parts = reply.aiter_raw()
            assert await anext(parts) == EVENTS[0]
            at.servers[0].go_on.set()
            assert EVENTS[0] + b"".join([part async for part in parts]) == STREAM

    run(main())


def test_a_request_reaches_the_worker_byte_for_byte() -> None:
    async def main() -> None:
        async with routing("well") as at:
            image = "data:image/png;base64," + "QUJD" * 3000
            body = json.dumps(
                {"model": "m", "messages": [{"role": "user", "content": [{"image_url": {"url": image}}]}]},
                indent=3,
            ).encode()
            await at.client.post(
                "/v1/chat/completions?a=%20b", content=body, headers={b"x-mine": "é".encode()}
            )
            audio = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--b--\r\n\x00\xff'
            kind = {"content-type": "multipart/form-data; boundary=b"}
            await at.client.post("/v1/audio/transcriptions", content=audio, headers=kind)
            chat, sound = at.servers[0].asked
            assert (chat.target, chat.body) == (b"/v1/chat/completions?a=%20b", body)
            assert chat.headers[b"x-mine"] == "é".encode()
            assert (sound.body, sound.headers[b"content-type"]) == (audio, kind["content-type"].encode())

    run(main())


def test_ids_are_passed_on_or_made() -> None:
    async def main() -> None:
        async with routing("well") as at:
            trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
            own = {"x-request-id": "mine", "traceparent": trace}
            sent = await at.client.post("/v1/completions", json={"prompt": "a"}, headers=own)
            made = await at.client.post("/v1/completions", json={"prompt": "a"})
            first, second = (asked.headers for asked in at.servers[0].asked)
            assert (first[b"x-request-id"], first[b"traceparent"]) == (b"mine", trace.encode())
            assert sent.headers["x-request-id"] == "mine"
            assert made.headers["x-request-id"].encode() == second[b"x-request-id"] != b"mine"
            assert second[b"traceparent"].startswith(b"00-")

    run(main())


def test_an_old_client_without_chunks_gets_a_stream_that_ends_with_the_connection() -> None:
    async def main() -> None:
        async with routing("well") as at:
            body = _stream()
            reader, writer = await asyncio.open_connection("127.0.0.1", at.router.port)
            writer.write(b"POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\n")
            writer.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
            head, _, rest = (await reader.read()).partition(b"\r\n\r\n")
            assert b"chunked" not in head
            assert rest == STREAM
            writer.close()

    run(main())


def test_requests_of_one_connection_are_answered_in_order() -> None:
    async def main() -> None:
        async with routing("well") as at:
            reader, writer = await asyncio.open_connection("127.0.0.1", at.router.port)
            one = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
            writer.write(one * 20 + b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            answer = await reader.read()
            assert answer.count(WHOLE) == 20
            assert answer.endswith(b'{"serving":1,"waiting":0}')
            writer.close()

    run(main())


def test_the_record_says_where_a_request_went_and_why(tmp_path: Path) -> None:
    async def main() -> None:
        async with routing("closes", "well", record=tmp_path / "log", placement="round_robin") as at:
            assert (await at.ask(stream=True)).content.endswith(DONE)
        (line,) = (json.loads(text) for text in (tmp_path / "log").read_text().splitlines())
        assert [one["worker"] for one in line["attempts"]] == [0, 1]
        assert "closed the connection" in line["attempts"][0]["failure"]
        assert line["attempts"][1]["reason"] == "it is its turn"
        assert (line["status"], line["prompt_tokens"], line["cached_tokens"]) == (200, 90, 64)

    run(main())


def test_metrics_count_hits_and_requests() -> None:
    async def main() -> None:
        async with routing("well") as at:
            await at.ask(stream=True)
            await at.ask()
            assert await at.total("stretto_cached_tokens_total", model="m") == 64 + 32
            assert await at.total("stretto_prompt_tokens_total", worker=at.servers[0].url) == 180
            assert await at.total("stretto_computed_tokens_total") == 180 - 64 - 32
            assert await at.total("stretto_generated_tokens_total") == 10
            assert await at.total("stretto_requests_total", status="200", door="openai") == 2
            assert await at.total("stretto_request_seconds_count") == 2
            assert await at.total("stretto_first_token_seconds_count") == 1
            assert await at.total("stretto_token_seconds_count") == 1

    run(main())


def test_predicted_hits_are_counted_where_the_real_ones_are() -> None:
    async def main() -> None:
        async with routing("well", placement="stretto") as at:
            prompt = "Of harbours: " + "their lanterns burn all night. " * 60
            for _ in range(2):
                await at.ask(prompt=prompt)
            predicted = await at.total("stretto_predicted_cached_tokens_total")
            assert predicted > 0
            at.servers[0].mode = "400"
            await at.ask(prompt=prompt)
            assert await at.total("stretto_predicted_cached_tokens_total") == predicted

    run(main())


def test_models_of_unlike_workers_are_listed_together_and_found() -> None:
    async def main() -> None:
        async with routing("well") as at:
            other = StubServer(model="other")
            await other.open()
            added = await at.client.post("/router/workers", json={"url": other.url})
            assert added.status_code == 202
            await until(lambda: at.router_state.view.worker(1).state == "serving")
            listed = (await at.client.get("/v1/models")).json()["data"]
            assert {model["id"] for model in listed} == {"m", "other"}
            for name in ("m", "other"):
                assert (await at.client.get(f"/v1/models/{name}")).json() == {"id": name}
            assert "x-stretto-worker" in (await at.client.get("/v1/models/nobodys")).headers
            for _ in range(3):
                assert (await at.ask(model="other")).headers["x-stretto-worker"] == "1"
                assert (await at.ask(model="m")).headers["x-stretto-worker"] == "0"
            other.kill()

    run(main())


def test_texts_of_emulated_servers_are_equal_behind_the_router() -> None:
    async def main() -> None:
        async with EmulatedServers(fleet_of(2)) as servers:
            await servers.ready()
            async with routing(urls=tuple(servers.urls)) as at, httpx.AsyncClient(timeout=60) as direct:
                for is_streamed in (False, True):
                    asked = {"prompt": "Tell me of the harbour.", "max_tokens": 20, "stream": is_streamed}
                    one = await at.client.post("/v1/completions", json=asked)
                    other = await direct.post(f"{servers.urls[0]}/v1/completions", json=asked)
                    texts = [re.findall(r'"text":\s*"([^"]*)"', reply.text) for reply in (one, other)]
                    assert texts[0] == texts[1] != []
                    assert one.headers["content-type"] == other.headers["content-type"]
                assert await at.total("stretto_prompt_tokens_total") > 0

    run(main())


def test_the_openai_client_works() -> None:
    openai = pytest.importorskip("openai")

    async def main() -> None:
        async with routing("well") as at:
            client = openai.AsyncOpenAI(base_url=f"{at.router.url}/v1", api_key="k", max_retries=0)
            whole = await client.completions.create(model="m", prompt="Hello")
            assert whole.usage.prompt_tokens == 90
            at.servers[0].mode = "cut"
            stream = await client.completions.create(model="m", prompt="Hello", stream=True)
            with pytest.raises(openai.APIError, match="the answer was cut"):
                async for _ in stream:
                    pass

    run(main())


def test_paths_that_would_change_one_worker_are_refused() -> None:
    async def main() -> None:
        async with routing("well") as at:
            for path in (
                "/sleep",
                "/v1/load_lora_adapter",
                "/v1/%6coad_lora_adapter",
                "/emulator/faults",
                "/v2/x",
            ):
                assert (await at.client.post(path, json={})).status_code == 404
            assert (await at.client.put("/v1/completions", json={})).status_code == 405
            assert not at.servers[0].asked

    run(main())


@pytest.mark.parametrize(
    ("path", "is_right"),
    [
        ("/v1/files/a%20b", True),
        ("/v1/files/.hidden", True),
        ("/v1/models/a%2Fb", True),
        ("/v1/../sleep", False),
        ("/v1/%2e%2e/sleep", False),
        ("/v1/x/../../sleep", False),
        ("/v1//load_lora_adapter", False),
        ("/v1/./load_lora_adapter", False),
        ("/v1/load_lora_adapter/", False),
        ("/v1/%75nload%5Flora%5Fadapter", False),
    ],
)
def test_paths_are_judged_as_servers_read_them(path: str, is_right: bool) -> None:
    assert is_passed_on(read_target(path.encode()).path) == is_right


def _stream() -> bytes:
    return json.dumps({"prompt": "Hello", "stream": True}).encode()
