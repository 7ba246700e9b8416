"""One batch of a soak, from its file to its answers."""

from __future__ import annotations

import asyncio
import json
import time

import httpx

_NUM_LINES = 20
_ENDED = ("completed", "failed", "expired", "cancelled")


def end_of(answer: httpx.Response) -> str:
    """Return how a request has ended: "answered", or what came in place of an answer."""
    return "answered" if answer.status_code == 200 else f"{answer.status_code} {answer.text[:200]}"


async def batch_end(http: httpx.AsyncClient, model: str, number: int, until_s: float) -> str:
    """Have a batch answered; return how it ended, "" if the time was up before."""
    url = "/v1/chat/completions"
    lines = [
        {"model": model, "max_tokens": 8, "messages": [{"role": "user", "content": f"{number} {line}"}]}
        for line in range(_NUM_LINES)
    ]
    text = "".join(
        json.dumps({"custom_id": str(at), "method": "POST", "url": url, "body": body}) + "\n"
        for at, body in enumerate(lines)
    )
    sent = await http.post(
        "/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", text.encode())}
    )
    asked = {"input_file_id": sent.json().get("id"), "endpoint": url, "completion_window": "24h"}
    answer = await http.post("/v1/batches", json=asked)
    while answer.status_code == 200 and answer.json()["status"] not in _ENDED:
        if time.monotonic() >= until_s:
            return ""
        await asyncio.sleep(1.0)
        answer = await http.get(f"/v1/batches/{answer.json()['id']}")
    if answer.status_code != 200:
        return end_of(answer)
    batch = answer.json()
    if batch["status"] != "completed" or batch["request_counts"]["completed"] != _NUM_LINES:
        return f"{batch['status']}, {batch['request_counts']}"
    answers = (await http.get(f"/v1/files/{batch['output_file_id']}/content")).text.splitlines()
    ids = sorted(int(json.loads(line)["custom_id"]) for line in answers)
    return "answered" if ids == list(range(_NUM_LINES)) else f"answered: {ids}"
