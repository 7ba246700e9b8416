"""Bodies that a stranger may send, each the worst of its kind; one is made when it is sent."""

from __future__ import annotations

import json
from collections.abc import Callable

from stretto.model.record import record

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_APP, _SUBMIT = "/v1/apps/naive/queries", "/v1/submit"
_FORM = "multipart/form-data; boundary=b"


@record
class Attack:
    """A request with a large body.

    Attributes:
        make: makes the body.
        is_own: whether only the service knows its path, and not the router.
    """

    path: str
    make: Callable[[], bytes]
    content_type: str = "application/json"
    is_own: bool = False


def _many(one: bytes, count: int, before: bytes, after: bytes = b"]}") -> bytes:
    """Return a body with a list of equal items."""
    return before + b",".join([one] * count) + after


def _chat(content: bytes) -> bytes:
    return b'{"messages":[{"role":"user","content":%b}]}' % content


def _query(question: bytes, text: bytes) -> bytes:
    return b'{"inputs":{"question":"%b","files":[{"name":"a.txt","text":"%b"}]}}' % (question, text)


def _call(prompt: str) -> bytes:
    places = [{"name": "a", "in_out": False, "value": "x"}, {"name": "y", "in_out": True}]
    return json.dumps({"prompt": prompt, "placeholders": places}).encode()


def _form(parts: int) -> bytes:
    one = b'--b\r\nContent-Disposition: form-data; name="x"\r\n\r\ny\r\n'
    return one * parts + b"--b--\r\n"


_MESSAGE = b'{"role":"user","content":"hello, you"}'
_MESSAGES = b'{"messages":['
_PART = b'{"type":"text","text":"hello, you"}'
_TOOL = b'{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{}}}}'

ATTACKS: dict[str, Attack] = {
    "200,000 messages": Attack(CHAT, lambda: _many(_MESSAGE, 200_000, _MESSAGES)),
    "60,000 messages": Attack(CHAT, lambda: _many(_MESSAGE, 60_000, _MESSAGES)),
    "200,000 parts of a message": Attack(CHAT, lambda: _chat(_many(_PART, 200_000, b"[", b"]"))),
    "60,000 parts of a message": Attack(CHAT, lambda: _chat(_many(_PART, 60_000, b"[", b"]"))),
    "50,000 tools": Attack(CHAT, lambda: _many(_TOOL, 50_000, _MESSAGES + _MESSAGE + b'],"tools":[')),
    "a text of 15 MB": Attack(CHAT, lambda: _chat(b'"' + b"word " * 3_000_000 + b'"')),
    "a text of 12 MB in escapes": Attack(CHAT, lambda: _chat(b'"' + b"\\u00fc" * 2_000_000 + b'"')),
    "200,000 prompts": Attack(COMPLETIONS, lambda: _many(b'"hello, you"', 200_000, b'{"prompt":[')),
    "2 million token ids": Attack(COMPLETIONS, lambda: _many(b"12345", 2_000_000, b'{"prompt":[')),
    "400,000 token ids": Attack(COMPLETIONS, lambda: _many(b"12345", 400_000, b'{"prompt":[')),
    "400,000 stop strings": Attack(COMPLETIONS, lambda: _many(b'"a"', 400_000, b'{"prompt":"a","stop":[')),
    "400,000 fields of metadata": Attack(
        CHAT,
        lambda: json.dumps(
            {"messages": [{"role": "user", "content": "a"}], "metadata": {f"k{i}": 1 for i in range(160_000)}}
        ).encode(),
    ),
    "800,000 fields of one name": Attack(
        CHAT, lambda: b"{" + b'"model":"x",' * 800_000 + b'"messages":[' + _MESSAGE + b"]}"
    ),
    "nested 1 million deep": Attack(CHAT, lambda: _chat(b"[" * 1_000_000 + b"]" * 1_000_000)),
    "no JSON": Attack(CHAT, lambda: b"x" * 15_000_000),
    "JSON with NaN": Attack(CHAT, lambda: _many(b"NaN", 400_000, b'{"prompt":[')),
    "white space": Attack(CHAT, lambda: b" " * 14_000_000 + _chat(b'"a"')),
    "quotes": Attack(CHAT, lambda: b'"' * 15_000_000),
    "a number of 10 MB": Attack(CHAT, lambda: b'{"seed":' + b"1" * 10_000_000 + b"}"),
    "100,000 parts of a response": Attack("/v1/responses", lambda: _many(_MESSAGE, 100_000, b'{"input":[')),
    "100,000 messages of Anthropic's": Attack("/v1/messages", lambda: _many(_MESSAGE, 100_000, _MESSAGES)),
    "2,000 texts to embed": Attack(
        "/v1/embeddings", lambda: _many(b'"%b"' % (b"word " * 1400), 2000, b'{"input":[')
    ),
    "2,000 texts to rank": Attack(
        "/v1/rerank", lambda: _many(b'"%b"' % (b"word " * 1400), 2000, b'{"query":"a","documents":[')
    ),
    "a question of 1 MB": Attack(_APP, lambda: _query(b"why " * 249_000, b"a"), is_own=True),
    "a document of 15 MB": Attack(_APP, lambda: _query(b"why", b"Some words. " * 1_240_000), is_own=True),
    "a form of 200,000 parts": Attack(_APP, lambda: _form(200_000), _FORM, is_own=True),
    "200,000 places in a prompt": Attack(_SUBMIT, lambda: _call("{{a}}" * 200_000), is_own=True),
    "990 places in a prompt": Attack(_SUBMIT, lambda: _call("{{a}} b" * 990 + "{{output:y}}"), is_own=True),
    "a prompt of 10 MB": Attack(
        _SUBMIT, lambda: _call("{{a}}" + "word " * 2_000_000 + "{{output:y}}"), is_own=True
    ),
}
"""The bodies by name. Those that the service takes for a model go to the workers where it has some."""
