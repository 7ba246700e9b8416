"""All metrics that servers of this package publish at `/metrics`: names, kinds, labels and help.

Servers, the shipped dashboard and the pages of docs/ take names from here alone; a test holds that. Names
that begin with `vllm:` and `sglang:` are those of the servers that `stretto emulate` stands for, which are
read at workers too (`engine_metrics.py`).
"""

from __future__ import annotations

from stretto.wire.engine_metrics import SGLANG, VLLM
from stretto.wire.metrics import Family

# --- what happened to requests. A request is one call of a model: that of a client, or of a step of an app.

_OF_REQUEST = ("door", "tenant", "model", "worker")
"""`door`: where it came in: openai, apps, programs. `model`: name that a server lists, or else "other".
`worker`: URL of the server, or engine and number of the instance, that was asked last; "" for none."""
_WAIT_BOUNDS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_TOKEN_BOUNDS_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0)

REQUESTS = Family(
    "stretto_requests_total",
    "counter",
    "Requests that have ended, by status; 499: the client left; 0: the answer was cut.",
    (*_OF_REQUEST, "status"),
)
PROMPT = Family("stretto_prompt_tokens_total", "counter", "Tokens of prompts, as workers count.", _OF_REQUEST)
COMPUTED = Family("stretto_computed_tokens_total", "counter", "Those that were computed.", _OF_REQUEST)
CACHED = Family("stretto_cached_tokens_total", "counter", "Those found in a worker's cache.", _OF_REQUEST)
PREDICTED = Family(
    "stretto_predicted_cached_tokens_total",
    "counter",
    "Tokens of prompts that the worker was believed to hold, of answers with counts.",
    _OF_REQUEST,
)
GENERATED = Family("stretto_generated_tokens_total", "counter", "Tokens of answers.", _OF_REQUEST)
HELD_S = Family(
    "stretto_held_seconds",
    "histogram",
    "Seconds for which requests were held, because their program had no room in KV memory.",
    _OF_REQUEST,
    _WAIT_BOUNDS_S,
)
QUEUE_S = Family(
    "stretto_queue_seconds",
    "histogram",
    "Seconds for which requests waited for their turn.",
    _OF_REQUEST,
    _WAIT_BOUNDS_S,
)
FIRST_TOKEN_S = Family(
    "stretto_first_token_seconds",
    "histogram",
    "Seconds from the arrival of a request to the first event of its stream.",
    _OF_REQUEST,
    _WAIT_BOUNDS_S,
)
TOKEN_S = Family(
    "stretto_token_seconds",
    "histogram",
    "Seconds for each token of a stream after the first.",
    _OF_REQUEST,
    _TOKEN_BOUNDS_S,
)
REQUEST_S = Family(
    "stretto_request_seconds",
    "histogram",
    "Seconds from the arrival of a request to the end of its answer.",
    _OF_REQUEST,
    _WAIT_BOUNDS_S,
)
DEADLINES = Family(
    "stretto_deadlines_total",
    "counter",
    "Requests of programs with a deadline, by whether they kept it.",
    (*_OF_REQUEST, "kept"),
)
REFUSED = Family(
    "stretto_refused_total",
    "counter",
    "Requests that were refused before anything was asked: no such path, no key, over a limit, a bad body.",
    ("door", "status"),
)

_OF_FAULT = ("tenant", "model", "changes")
"""`changes`: what changes in the prompts of a program, before text that stays: time, id, order of tools…"""
FAULT_REQUESTS = Family(
    "stretto_prompt_fault_requests_total",
    "counter",
    "Requests of programs whose prompts change before text that stays.",
    _OF_FAULT,
)
FAULT_TOKENS = Family(
    "stretto_prompt_fault_tokens_total",
    "counter",
    "Tokens that were computed again because of such a change.",
    _OF_FAULT,
)
FAULT_S = Family(
    "stretto_prompt_fault_seconds_total",
    "counter",
    "Seconds of prefills that such tokens took, estimated.",
    _OF_FAULT,
)
REPAIRED = Family("stretto_repaired_requests_total", "counter", "Requests whose prompt was repaired.")

# --- what a door and its workers are doing

CERTIFICATE_EXPIRES = Family(
    "stretto_certificate_expires_timestamp_seconds",
    "gauge",
    "Unix time at which a certificate expires that the settings name.",
    ("file",),
)
ATTEMPTS = Family(
    "stretto_attempts_total", "counter", "Times that a request was sent to a worker.", ("worker",)
)
FAILED_ATTEMPTS = Family("stretto_failed_attempts_total", "counter", "Attempts that failed.", ("worker",))
HEDGES = Family(
    "stretto_hedges_total", "counter", "Requests sent a second time, beside an attempt that was slow."
)
DECISION_S = Family("stretto_decision_seconds_total", "counter", "Seconds spent on choosing workers.")
WAITING = Family(
    "stretto_waiting",
    "gauge",
    "Requests that wait: for their turn, or for room of their program in KV memory.",
    ("engine", "why"),
)
OPEN = Family("stretto_open_requests", "gauge", "Requests at the door, waiting or running.")
HELD_BYTES = Family("stretto_held_bytes", "gauge", "Bytes that are held for clients.")
PROGRAMS = Family(
    "stretto_programs",
    "gauge",
    "Programs of the last minutes: with a request that runs or waits, or silent between two requests.",
    ("state",),
)
PEERS_HEARD = Family(
    "stretto_peers_heard", "gauge", "Other routers before the same workers that are heard now."
)
RUNNING = Family("stretto_running", "gauge", "Requests, or tasks, that run at a worker.", ("worker",))
STATE = Family("stretto_worker_state", "gauge", "1 for the state that a worker is in.", ("worker", "state"))
WANTS_KEY = Family(
    "stretto_worker_wants_key",
    "gauge",
    "1 for a worker that refuses requests without a key, and for which the settings have none.",
    ("worker",),
)
KV_TOKENS = Family("stretto_kv_tokens", "gauge", "Tokens that a worker's KV memory holds.", ("worker",))
KV_CLAIMED = Family("stretto_kv_claimed_tokens", "gauge", "Those that programs keep there.", ("worker",))

OWN = (
    *(REQUESTS, PROMPT, COMPUTED, CACHED, PREDICTED, GENERATED, HELD_S, QUEUE_S, FIRST_TOKEN_S, TOKEN_S),
    *(REQUEST_S, DEADLINES, REFUSED, ATTEMPTS, FAILED_ATTEMPTS, HEDGES, DECISION_S, WAITING, OPEN),
    *(FAULT_REQUESTS, FAULT_TOKENS, FAULT_S, REPAIRED, PEERS_HEARD),
    *(CERTIFICATE_EXPIRES, HELD_BYTES, PROGRAMS, RUNNING, STATE, WANTS_KEY, KV_TOKENS, KV_CLAIMED),
)
"""Metrics of a door: `stretto serve` and `stretto route`."""

# --- what only emulated servers have: how far behind schedule their process is

LAG_RATIO = Family(
    "stretto_emulate:lag_ratio",
    "gauge",
    "Seconds that parts of answers came late per second that clients waited, in the last ten seconds.",
)
LATE_S = Family(
    "stretto_emulate:late_seconds_total", "counter", "Real seconds that parts of answers came late, summed."
)
WAITED_S = Family(
    "stretto_emulate:waited_seconds_total", "counter", "Real seconds that clients waited for them, summed."
)
MOST_LATE_S = Family(
    "stretto_emulate:most_late_seconds", "gauge", "Real seconds that the latest of all parts came late."
)
SLIPPED_S = Family(
    "stretto_emulate:slipped_seconds_total",
    "counter",
    "Real seconds by which all that was planned was put off, because the machine could not keep up.",
)
CORE_WAIT_S = Family(
    "stretto_emulate:core_wait_seconds_total",
    "counter",
    "Real seconds that the servers were ready to run while other programs used the cores.",
)
EMULATED = (LAG_RATIO, LATE_S, WAITED_S, MOST_LATE_S, SLIPPED_S, CORE_WAIT_S)

TABLE = (*OWN, *VLLM, *SGLANG, *EMULATED)
"""All metrics."""
