"""What a door answers its admin: the live page, and where the time of programs went. A router and a service
answer the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from time import monotonic
from urllib.parse import parse_qs

import msgspec

from stretto.http.client.headers import Headers
from stretto.http.served import WholeAnswer
from stretto.operate.explanations import explanation_json, summary_json
from stretto.operate.live import FleetView, live_json, program_gauge
from stretto.operate.prefix.shown import faults_json, faults_published
from stretto.operate.watch import Watch
from stretto.wire import metric_table as table
from stretto.wire.metrics import Published

PAGE, LIVE, PROGRAMS, PROGRAM = "/", "/admin/live", "/admin/programs", "/admin/program"
"""Paths of the page, of its events, of the list of programs, and of one program (`?program=ID`)."""
PROMPTS, TRAFFIC = "/admin/prompts", "/admin/traffic"
"""Paths of the faults of prompts, and of the requests of the last minutes, for a simulation."""
LIVE_S = 1.0
"""Seconds between two events of the page."""
_POLICY = (
    b"default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; "
    b"img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HTML: Headers = [
    (b"content-type", b"text/html; charset=utf-8"),
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
]
_JSON: Headers = [
    (b"content-type", b"application/json"),
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
]


class AdminPages:
    """Answers to requests of an admin.

    Args:
        view: returns the present state of the door.
        settings: returns the settings of its router and workers, for a simulation; None without a router.
    """

    def __init__(
        self,
        watch: Watch,
        view: Callable[[], FleetView],
        settings: Callable[[], Mapping[str, object] | None] = lambda: None,
    ) -> None:
        self._watch = watch
        self._settings = settings
        self._view = view
        self._event = b""
        self._made_s = -LIVE_S

    def answer(self, path: str, query: str) -> WholeAnswer | None:
        """Return the answer to a GET of a path, or to a HEAD of that of the events; None for other paths."""
        now_s = monotonic()
        match path:
            case "/":
                return 200, _HTML, _page()
            case "/admin/live":
                return 200, [(b"content-type", b"text/event-stream")], b""
            case "/admin/programs":
                return _json([summary_json(one, now_s) for one in self._watch.programs])
            case "/admin/prompts":
                return _json(faults_json(self._watch.prompts))
            case "/admin/traffic" if (settings := self._settings()) is not None:
                requests = [one.to_json() for one in self._watch.traffic.requests()]
                return _json({**settings, "requests": requests})
            case "/admin/program":
                name = "".join(parse_qs(query).get("program", [""]))
                found = self._watch.programs.find(name)
                if not found:
                    message = (
                        f"there is no program {name!r:.100} among the last ones; {PROGRAMS} lists "
                        "them, as does `stretto explain --url`"
                    )
                    return _json({"error": {"message": message, "code": 404}}, 404)
                return _json([explanation_json(one, now_s) for one in found])
        return None

    def event(self) -> bytes:
        """Return what the page shows, as the data of an event. All who look share one for a second."""
        now_s = monotonic()
        if now_s - self._made_s >= LIVE_S * 0.9:
            self._made_s = now_s
            self._event = msgspec.json.encode(live_json(self._watch, self._view(), now_s))
        return self._event

    def published(self) -> list[Published]:
        """Return the metrics of programs by their states, of faults of prompts, and of certificates."""
        counts = program_gauge(self._watch, self._view(), monotonic())
        programs = [table.PROGRAMS.sample(n, state) for state, n in counts.items()]
        faults = faults_published(self._watch.prompts)
        return [(table.PROGRAMS, programs), *faults, *self._watch.certificates.published()]


def _json(value: object, status: int = 200) -> WholeAnswer:
    return status, _JSON, msgspec.json.encode(value)


@cache
def _page() -> bytes:
    return files("stretto.operate").joinpath("live_page.html").read_bytes()
