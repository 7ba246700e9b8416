"""Prints where the time of a program went, as the door that it asks tells."""

from __future__ import annotations

import json
import os
import sys
from http import HTTPStatus
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

from stretto.cli.verbosity import shown
from stretto.model.errors import ConfigError, EngineFailure, EngineUnavailable, UserError
from stretto.model.extras import imports_of
from stretto.operate.admin_pages import PROGRAM, PROGRAMS, TRAFFIC
from stretto.operate.explanations import explanation_text

_TIMEOUT_S = 30.0


def print_program_time(program: str | None, url: str | None, key_env: str | None, *, as_json: bool) -> None:
    """Print where the time of a program went; without a program, the programs that the door remembers.

    Raises:
        UserError: no door is named, the door does not know the program, or it wants a key.
        EngineFailure: the door cannot be reached, or gives an answer that is none.
    """
    if url is None:
        raise UserError("--program: say with --url which door the program runs at")
    if not url.startswith(("http://", "https://")):
        raise UserError(f"--url: {url!r} must be a URL like http://127.0.0.1:8700")
    path = PROGRAMS if program is None else f"{PROGRAM}?program={quote(program, safe='')}"
    found = _ask(url.rstrip("/") + path, key_env)
    if as_json:
        print(json.dumps(found))
    elif program is None:
        print(f"{'program':32} {'wall time':>12}")
        for one in found:
            print(
                shown(f"{one['program']:32} {one['wall_s']:10.3f} s  requests: {one['requests']}", sys.stdout)
            )
    else:
        print(shown("\n\n".join(map(explanation_text, found)), sys.stdout))
        if (what_if := _what_if(url.rstrip("/"), key_env, found)) is not None:
            print("\n" + what_if)


def _what_if(url: str, key_env: str | None, found: list[dict[str, Any]]) -> str | None:
    """Return what one more worker would change for a program and for all, in words; None if the door has no
    workers, or too few requests are known. A door of an earlier release tells nothing.
    """
    try:
        told = _ask(url + TRAFFIC, key_env)
    except (UserError, EngineFailure):
        return None
    with imports_of("route", "the simulation"):
        from stretto.router.what_if import simulated_change
    try:
        change = simulated_change(told)
    except (KeyError, TypeError, ValueError) as error:
        raise EngineFailure(f"{url}{TRAFFIC}: the answer is none of a door: {error!s:.100}") from error
    if change is None:
        return None
    mine = [change.changes.get((one.get("tenant", ""), one["program"])) for one in found]
    words = [f"with one more worker: {share:+.0%}" for share in mine if share is not None]
    return "\n".join(
        [
            *words,
            f"all programs with one more worker: {change.mean_change:+.0%}",
            f"(simulated from the last {change.num_requests} requests; of what was, the simulation is "
            f"{change.error:.0%} off)",
        ]
    )


def _ask(url: str, key_env: str | None) -> Any:
    headers = {"accept": "application/json"}
    if key_env is not None:
        if not (key := os.environ.get(key_env, "").strip()):
            raise ConfigError(f"--admin-key-env: the environment variable {key_env!r} is empty or not set")
        headers["authorization"] = f"Bearer {key}"
    try:
        with urlopen(Request(url, headers=headers), timeout=_TIMEOUT_S) as answer:
            return json.load(answer)
    except HTTPError as error:
        raise _refused(error) from error
    except (URLError, TimeoutError, OSError) as error:
        raise EngineUnavailable(f"{url}: no answer: {getattr(error, 'reason', error)}") from error
    except ValueError as error:
        raise EngineFailure(f"{url}: the answer is none of a door: {error!s:.100}") from error


def _refused(error: HTTPError) -> UserError | EngineFailure:
    """Return what a door's refusal means."""
    if error.code == HTTPStatus.UNAUTHORIZED:
        return UserError("the door wants its admin key: give it with --admin-key-env NAME")
    try:
        message = str(json.load(error)["error"]["message"])
    except (ValueError, KeyError, TypeError, OSError):
        message = f"status {error.code}"
    return UserError(message) if error.code == HTTPStatus.NOT_FOUND else EngineFailure(message)
