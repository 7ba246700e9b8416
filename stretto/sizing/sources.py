"""The files that traffic comes from: traces of agents, records of a router and of an app, Azure's traces."""

from __future__ import annotations

from pathlib import Path

from stretto.sim.traces import read_azure
from stretto.sizing.recorded_app import read_recorded_app
from stretto.trace.agents.formats import read_agent_trace
from stretto.trace.agents.requests import AgentRequest, AgentTrace, SizedPrompt, checked_trace
from stretto.trace.lines import json_lines
from stretto.trace.recorded_run import SCHEMA


def read_traffic(path: Path) -> AgentTrace:
    """Read a file with traffic.

    Raises:
        TraceError: the file cannot be read, or does not fit its format.
    """
    if path.name.endswith((".csv", ".csv.gz")):
        requests = read_azure(path)
        return checked_trace(
            path,
            (
                AgentRequest(
                    id=f"row {number}",
                    line=number,
                    prompt=SizedPrompt(one.prompt_tokens),
                    arrival_s=one.arrival_s,
                    output_tokens=max(1, one.output_tokens),
                )
                for number, one in enumerate(requests, 1)
            ),
        )
    first = next(json_lines(path), None)
    if first is not None and first.fields.get("schema") == SCHEMA:
        return read_recorded_app(path)
    return read_agent_trace(path)
