"""Where the time of a program went, as JSON and in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stretto.operate.parts import NAMES
from stretto.operate.program_times import ProgramTime, RequestTime

LABELS: Mapping[str, str] = {
    "client": "tool or client",
    "held": "held: no room in KV memory",
    "queue": "waiting for its turn",
    "retries": "attempts that failed",
    "worker_queue": "waiting at the worker",
    "prefill": "prefill",
    "decode": "decode",
    "tool": "steps that are no LLM",
    "network": "client did not read",
}
"""What each part is called where people read it."""
_NOT_KNOWN = "not known, as no streamed answer has shown yet how long prefills take"
assert tuple(LABELS) == NAMES


def summary_json(program: ProgramTime, now_s: float) -> dict[str, Any]:
    """Return what a list says of a program."""
    if (summary := program.summary) is None:
        summary = program.summary = {
            "program": program.program,
            **({"tenant": program.tenant} if program.tenant else {}),
            "door": program.door,
            "wall_s": round(program.wall_s, 6),
            "requests": program.num_requests,
            "failed": program.num_failed,
            "prompt_tokens": program.prompt_tokens,
            "cached_tokens": program.cached_tokens,
            "output_tokens": program.output_tokens,
            "path": program.path.to_json(),
            "saved_s": round(program.saved_s, 6),
        }
    return {
        **summary,
        "age_s": round(now_s - program.start_s, 3),
        "silent_s": 0.0 if program.open else round(now_s - program.last_s, 3),
        "open": len(program.open),
    }


def explanation_json(program: ProgramTime, now_s: float) -> dict[str, Any]:
    """Return where the time of a program went, with the requests on its critical path and the last others.

    Times of requests are seconds after the program's first arrival.
    """
    critical = {one.number for one in program.critical()}
    return {
        **summary_json(program, now_s),
        "labels": LABELS,
        "last_requests": [_request_json(one, program, one.number in critical) for one in program.requests],
    }


def _request_json(one: RequestTime, program: ProgramTime, is_critical: bool) -> dict[str, Any]:
    return {
        "id": one.trace.request_id,
        **({"step": one.trace.step} if one.trace.step else {}),
        "model": one.trace.model,
        "worker": one.worker,
        "status": one.trace.status,
        "begun_s": round(one.begun_s - program.start_s, 6),
        "ended_s": round(one.ended_s - program.start_s, 6),
        "critical": is_critical,
        "parts": one.parts._replace(client=0.0).to_json(),  # that was before it
        "saved_s": round(one.saved_s, 6),
    }


def explanation_text(explained: Mapping[str, Any]) -> str:
    """Return the JSON of an explanation in words, a line for each part and for each critical request."""
    wall_s, labels = explained["wall_s"], explained["labels"]
    num_cached, num_prompt = explained["cached_tokens"], explained["prompt_tokens"]
    hit = f"{num_cached / num_prompt:.0%}" if num_prompt else "–"
    lines = [
        f"program {explained['program']}: {wall_s:.3f} s; requests: {explained['requests']}, "
        f"open: {explained['open']}, failed: {explained['failed']}",
        f"tokens: {num_prompt} of prompts ({hit} from caches), {explained['output_tokens']} generated",
        "",
        "along its critical path:",
    ]
    for name, seconds in sorted(explained["path"].items(), key=lambda part: -part[1]):
        lines.append(f"  {labels.get(name, name):28} {seconds:10.3f} s  {seconds / max(wall_s, 1e-9):5.0%}")
    saved = f"{explained['saved_s']:.3f} s" if explained["saved_s"] or not num_cached else _NOT_KNOWN
    lines.append(f"prefill saved by caches, in all its requests: {saved}")
    critical = [one for one in explained["last_requests"] if one["critical"]]
    if critical:
        lines += ["", "its last requests on that path:"]
    for one in critical:
        parts = ", ".join(
            f"{labels.get(name, name)} {seconds:.3f}"
            for name, seconds in sorted(one["parts"].items(), key=lambda part: -part[1])
        )
        what = one.get("step") or one["model"]
        lines.append(f"  {one['begun_s']:9.3f} s  {what} at {one['worker'] or 'no worker'}: {parts}")
    return "\n".join(lines)
