"""What users write for `stretto size`, and how it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from stretto.model.deployment import Deployment
from stretto.model.errors import ConfigError, UserError
from stretto.model.replica import Engine
from stretto.sizing.asked import gpu_name, parse_load, parse_servers, read_prices
from stretto.sizing.load import Load
from stretto.sizing.objectives import Objective, parse_objectives, shown_s
from stretto.sizing.servers import ENGINE, MAX_RUNNING

MODEL = "Llama-3.1-8B-Instruct"


def test_objectives_are_statistics_of_times_with_limits() -> None:
    found = parse_objectives("p95 first_token 2s, mean job 1.5min,p99 per_token 50 ms")
    assert found == (
        Objective("p95", "first_token", 2.0),
        Objective("mean", "job", 90.0),
        Objective("p99", "per_token", 0.05),
    )
    assert str(found[0]) == "p95 first token 2 s"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "there is no objective"),
        ("p95 first_token", "is not a statistic, a time and a limit"),
        ("p95 first_token 2", "is not a statistic, a time and a limit"),
        ("p42 first_token 2s", "'p42' is no statistic; there are p50, p90, p95, p99, mean"),
        ("p95 firsttoken 2s", "'firsttoken' is no time; there are first_token, per_token, job"),
        ("p95 job 2 fortnights", "'fortnights' is no unit; there are ms, s, min, h"),
        ("p95 job 0s", "the limit must be above 0"),
        ("p95 job 1s, p95 job 2s", "p95 job is limited twice"),
    ],
)
def test_wrong_objectives_are_refused(text: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        parse_objectives(text)


def test_loads_are_sessions_or_rates() -> None:
    assert parse_load("88 sessions") == Load("sessions", 88)
    assert parse_load("1 session") == Load("sessions", 1)
    assert parse_load("5/s") == parse_load("5 per s") == parse_load("300 queries/min") == Load("per_s", 5)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "88",
        "many sessions",
        "1.5 sessions",
        "0 sessions",
        "0/s",
        "5/day",
        "9" * 400 + " sessions",
        "٣ sessions",
    ],
)
def test_wrong_loads_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="--load"):
        parse_load(text)


def test_servers_are_gpus_with_a_model() -> None:
    one, two = parse_servers("h100, 2xA100-80G", MODEL)
    assert (one.label, two.label) == ("H100-80G", "2xA100-80G")
    engine = Engine(ENGINE, "llm", max_running=MAX_RUNNING, keeps_state=True, timeout_s=None)
    assert Deployment(engine, (one.replica(), two.replica())), "a simulation takes them"
    assert two.kv_tokens > one.kv_tokens > 100_000
    assert not one.is_measured
    assert parse_servers("A100", "Llama-2-7b-hf")[0].is_measured


def test_the_first_part_of_a_name_stands_for_the_gpu_with_the_most_memory() -> None:
    assert [gpu_name(name) for name in ("A100", "h100", "L40S", "A100-40G")] == [
        "A100-80G",
        "H100-80G",
        "L40S",
        "A100-40G",
    ]


@pytest.mark.parametrize(
    ("gpus", "model", "reason"),
    [
        ("", MODEL, "there is no GPU"),
        ("H900", MODEL, "peak figures of the GPU 'H900'"),
        ("H100,H100-80G", MODEL, "named twice"),
        ("H100", "Llama-9", "costs of the model 'Llama-9'"),
        ("L4", "Llama-3.1-70B-Instruct", "does not fit"),
    ],
)
def test_wrong_servers_are_refused(gpus: str, model: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        parse_servers(gpus, model)


def test_a_server_costs_as_much_as_its_gpus(tmp_path: Path) -> None:
    file = tmp_path / "prices.toml"
    file.write_text("H100 = 2.5\nA100-80G = 1.25\n")
    assert read_prices(file, parse_servers("H100,2xA100", MODEL)) == (2.5, 2.5)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("H100 =", "Invalid value"),
        ("H100 = 0", "a price above 0"),
        ('H100 = "cheap"', "a price above 0"),
        ("A100 = 1", "no price of H100-80G"),
        ("X1 = 1", "peak figures of the GPU 'X1'"),
    ],
)
def test_wrong_prices_are_refused(tmp_path: Path, content: str, reason: str) -> None:
    file = tmp_path / "prices.toml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=reason):
        read_prices(file, parse_servers("H100", MODEL))


def test_missing_prices_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_prices(tmp_path / "none.toml", parse_servers("H100", MODEL))


def test_seconds_are_written_as_people_do() -> None:
    assert [shown_s(one) for one in (0.0123, 2.0, 12.34, 5000.0)] == ["12.3 ms", "2 s", "12.3 s", "5,000 s"]
