"""Distributions from which workloads are drawn: of coding agents as recorded, of chats as published.

Source of the tables: 355 sessions of a coding agent, `traces/` of callanjfox/kv-cache-tester at 94f6046d
(published by WEKA, Apache License 2.0). They are quantiles at the middles of 24 equal parts, no more of the
data is here. An agent's task goes from a message of a person to the answer that calls no tool; only tasks
that call one are counted. Tokens and seconds are divided by `SCALE`, as these sessions ran on larger models
than ours.
"""

from __future__ import annotations

from random import Random

SCALE = 16
"""Tokens and seconds of the recorded agents for one of ours."""
MOST_FIRST_TOKENS = 1024
"""Longest first prompt of an agent, so that those of one server fit into its KV memory together."""

CALLS = (2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 4, 4, 5, 5, 6, 7, 8, 10, 13, 17, 23, 30, 42, 68)
_FIRST = (
    *(11349, 13904, 15678, 17075, 17724, 18467, 18964, 19530, 20202, 20725, 21393, 24236),
    *(29831, 45412, 64641, 69692, 86769, 103296, 123001, 138690, 183948, 259335, 300806, 462815),
)
_ADDED = (
    *(16, 16, 16, 16, 24, 37, 60, 90, 123, 163, 204, 254),
    *(306, 369, 444, 552, 678, 841, 1072, 1380, 1830, 2625, 4087, 9525),
)
_WRITTEN = (
    *(72, 95, 108, 118, 126, 136, 144, 155, 166, 179, 194, 211),
    *(231, 254, 281, 316, 359, 411, 474, 551, 663, 866, 1291, 2634),
)
_TOOL_S = (3, 4, 4, 5, 5, 5, 6, 6, 7, 7, 8, 8, 9, 10, 11, 13, 15, 17, 21, 28, 40, 68, 126, 378)


def agent_calls(draw: Random) -> int:
    """Return the number of LLM calls of an agent's task."""
    return draw.choice(CALLS)


def agent_first_tokens(draw: Random) -> int:
    """Return the tokens of an agent's first prompt."""
    return min(MOST_FIRST_TOKENS, _scaled(draw.choice(_FIRST)))


def agent_added_tokens(draw: Random) -> int:
    """Return the tokens that a tool's result adds to the prompt of the next call."""
    return _scaled(draw.choice(_ADDED))


def agent_written_tokens(draw: Random) -> int:
    """Return the tokens of an agent's answer."""
    return _scaled(draw.choice(_WRITTEN))


def tool_s(draw: Random) -> float:
    """Return the seconds that a tool takes."""
    return draw.choice(_TOOL_S) / SCALE


def chat_written_tokens(draw: Random) -> int:
    """Return the tokens of an answer in a conversation, like those of Azure's trace of conversations."""
    return min(1000, max(1, round(draw.lognormvariate(4.92, 0.93))))


def chat_message_tokens(draw: Random) -> int:
    """Return the tokens of a person's message in a conversation. Assumed."""
    return min(2000, max(4, round(draw.lognormvariate(4.4, 1.0))))


def step_written_tokens(draw: Random, median: int) -> int:
    """Return the tokens of the answer of an app's step, around its median. Assumed."""
    return max(1, round(draw.lognormvariate(0.0, 0.4) * median))


def pareto(draw: Random, least: int, shape: float, most: int) -> int:
    """Return a whole number of a Pareto distribution, cut off at `most`."""
    return min(most, int(least * draw.paretovariate(shape)))


def _scaled(recorded: int) -> int:
    return max(1, round(recorded / SCALE))
