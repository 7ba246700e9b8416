"""Names and defaults that help texts list, apart from the tables of what they name.

A command prints its help, and refuses wrong arguments, without an import of engines, orders or planners.
`tests/cli/test_light_start.py` compares these names with the tables.
"""

from __future__ import annotations

APPS = ("naive", "advanced")
SEARCH = "search"
"""Name of the app that searches the web, or the documents by words, instead of indexing documents."""
POLICIES = (
    "programs_first",
    "topology_aware",
    "per_invocation",
    "throughput",
    "least_work",
)
PLACEMENTS = ("least_seconds", "least_loaded", "round_robin", "e2", "parrot", "stretto")
CPU = "cpu"
"""Name of this machine's cores, as a machine that is planned for."""
PLANNERS = ("stretto", "moldable_list", "samullm_greedy", "min_heuristic", "max_heuristic")
WEIGHTS = ("cache", "disk", "host", "asleep")
"""Places of a model's weights before its first start."""
DTYPES = ("float32", "bfloat16", "float16")
EMBEDDER = "all-MiniLM-L6-v2"
RECOVER_S = 2.0
"""Seconds that a question waits for a server that refuses connections."""
MODEL = "Llama-2-7b-hf"
DEVICE = "A100-80G"
"""Model and device on which traces of agents are simulated."""
HOST = "127.0.0.1"
SERVICE_PORT = 8700
ROUTER_PORT = 8080
MAX_HELD_BYTES = 512_000_000
"""Bytes that a router holds for all its clients together."""
