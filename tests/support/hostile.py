"""What the hostile suite shares: an engine to be killed in mid-decode, faults of a server, figures."""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Mapping

import pytest

from benchmarks.common.fake_engines import FakeLLM
from stretto.model.tasks import LLMEvent
from support.openai_stub import EVENT_STREAM, Reply

SOAK_S = float(os.environ.get("STRETTO_SOAK_S", "0"))
"""Seconds of the soak; 0 runs a few seconds and prints no figures."""


class SlowFakeLLM(FakeLLM):
    """A fake LLM whose steps take 3 ms, so that it can be killed in mid-decode."""

    def step(self) -> list[LLMEvent]:
        time.sleep(0.003)
        return super().step()


def show(capsys: pytest.CaptureFixture[str], what: str, **figures: object) -> None:
    """Print figures of a run, if it is one that measures."""
    if SOAK_S:
        with capsys.disabled():
            print(
                f"\n{what}: "
                + ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in figures.items())
            )


def resident_mb() -> int:
    """Largest memory that this process has had so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def _stream(*events: object, done: bool = True, piece_bytes: int = 1 << 20) -> Reply:
    lines = [b"data: " + (e if isinstance(e, bytes) else json.dumps(e).encode()) + b"\n\n" for e in events]
    tail = b"data: [DONE]\n\n" if done else b""
    return Reply(raw=b"".join(lines) + tail, headers=EVENT_STREAM, piece_bytes=piece_bytes)


def _text(text: object, finish: object = None) -> dict[str, object]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish}]}


SERVER_FAULTS: Mapping[str, Reply] = {
    **{
        f"status {code}": Reply(status=code)
        for code in (400, 401, 403, 404, 413, 422, 429, 500, 502, 503, 504)
    },
    "redirect": Reply(status=302, raw=b"", headers={"Location": "http://127.0.0.1:9/"}),
    **{
        f"Retry-After {value!r}": Reply(status=429, headers={"Retry-After": value})
        for value in ("-1", "0", "nan", "soon")
    },
    "no answer": Reply(status=0),
    "empty body": Reply(raw=b"", headers=EVENT_STREAM),
    "a page": Reply(raw=b"<html>busy</html>", headers={"Content-Type": "text/html"}),
    "a whole answer": Reply(
        raw=json.dumps(_text("x", "stop")).encode(), headers={"Content-Type": "application/json"}
    ),
    "[DONE] alone": _stream(),
    "no choice": _stream({"choices": []}),
    "choices null": _stream({"choices": None}),
    "text is a number": _stream(_text(5)),
    "no JSON": _stream(b"{"),
    "deep JSON": _stream(b"[" * 100_000),
    "NaN": _stream(b"NaN"),
    "half a character": _stream(b'{"choices": [{"index": 0, "text": "\\ud800", "finish_reason": "stop"}]}'),
    "not UTF-8": _stream(b'{"choices": [{"text": "\xff\xfe"}]}'),
    "an endless line": Reply(raw=b"data: " + b"x" * 2_000_000, headers=EVENT_STREAM),
    "an endless text": _stream(*[_text("word " * 50)] * 2_000, done=False),
    "error in mid-stream": _stream(_text("a"), {"error": {"message": "broke", "code": 500}}),
    "refusal in mid-stream": _stream(_text("a"), {"error": {"message": "no", "code": 400}}),
    "negative counts": _stream(
        {**_text("a", "stop"), "usage": {"prompt_tokens": -5, "completion_tokens": "x"}}
    ),
    "cut in mid-stream": Reply(("a", " b"), "cut"),
    "no end": Reply(("a", " b"), "stop"),
    "silence": Reply(("a",), "hang"),
    "wrong length": Reply(raw=b"data: x\n\n", headers={**EVENT_STREAM, "Content-Encoding": "gzip"}),
}
