"""Each request has one line of log, which has no secret and no text of anybody."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
from support.routing import routing, run, until

from stretto.cli.verbosity import JsonLines
from stretto.cluster.placement import Choice
from stretto.operate.request_lines import REQUESTS, RequestLines
from stretto.sched.request_trace import RequestTrace, Try

SECRET, TEXT = "sk-a-long-secret", "A prompt that is nobody's business"


@pytest.fixture
def lines() -> Iterator[list[logging.LogRecord]]:
    """The records of all loggers of the package, at all levels."""
    found: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record)

    package, handler = logging.getLogger("stretto"), Keep()
    level = package.level
    package.addHandler(handler)
    package.setLevel(logging.DEBUG)
    yield found
    package.setLevel(level)
    package.removeHandler(handler)


def test_a_request_has_one_line_with_who_where_and_why(lines: list[logging.LogRecord]) -> None:
    async def main() -> None:
        async with routing("503", "well", max_failures=9) as at:
            reply = await at.ask(stream=True)
            assert reply.status_code == 200
            await until(lambda: any(one.name == REQUESTS.name for one in lines))
            (line,) = (one for one in lines if one.name == REQUESTS.name)
            fields = line.request  # type: ignore[attr-defined]
            assert fields["id"] == reply.headers["x-request-id"]
            assert (fields["status"], fields["worker"]) == (200, at.servers[1].url)
            assert (fields["attempts"], fields["cached_tokens"]) == (2, 64)
            assert fields["program"] == reply.headers["x-stretto-program"].partition(";")[0]
            assert 0.0 <= fields["first_token_s"] <= fields["total_s"]
            assert f"worker={at.servers[1].url}" in line.getMessage()
            written = json.loads(JsonLines().format(line))
            assert (written["request"], written["level"]) == (json.loads(json.dumps(fields)), "info")

    run(main())


def test_no_line_has_a_key_or_a_text(lines: list[logging.LogRecord]) -> None:
    async def main() -> None:
        async with routing("well") as at:
            keys = (("authorization", f"Bearer {SECRET}"), ("x-api-key", SECRET), ("cookie", SECRET))
            for name, value in keys:
                for path in ("/v1/completions", f"/v1/completions?key={SECRET}", f"/nowhere?key={SECRET}"):
                    for body in (f'{{"model": "m", "prompt": "{TEXT}"}}', f'{{"prompt": "{TEXT}'):
                        await at.client.post(path, content=body, headers={name: value})
            await until(lambda: sum(one.name == REQUESTS.name for one in lines) == 6)
            for line in lines:
                for text in (logging.Formatter("%(message)s").format(line), JsonLines().format(line)):
                    assert SECRET not in text, text
                    assert TEXT not in text, text

    run(main())


def test_what_a_client_names_cannot_begin_a_line_of_its_own(lines: list[logging.LogRecord]) -> None:
    trace = RequestTrace("id\nrequest id=forged", "/v1/completions", 0.0, model='m" \x1b[31m')
    trace.tries.append(Try(0, "http://w", Choice(0), 0.0))
    trace.end(200, 1.0)
    RequestLines().on_request_ended(trace, 1.0)
    (line,) = lines
    message = line.getMessage()
    assert message.isprintable()
    assert 'id="id\\nrequest id=forged"' in message


def test_nothing_is_written_where_the_level_is_above() -> None:
    trace = RequestTrace("r", "/v1/completions", 0.0)
    REQUESTS.setLevel(logging.WARNING)
    try:
        RequestLines().on_request_ended(trace, 1.0)  # a trace without an end would fail to be described
    finally:
        REQUESTS.setLevel(logging.NOTSET)
