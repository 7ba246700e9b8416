"""The classes of requests that OpenAI's field `service_tier` stands for."""

from __future__ import annotations

from collections.abc import Mapping

from stretto.model.tasks import Objective

OFFLINE_TIER = "flex"
TIERS: Mapping[str, Objective] = {
    "auto": "throughput",
    "default": "throughput",
    "priority": "latency",
    "fast": "latency",
    OFFLINE_TIER: "offline",
}
"""What each tier asks for. OpenAI's "scale" is missing: it is capacity that was bought before."""
