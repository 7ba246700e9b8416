"""What prompts share, by hand and on a trace file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.machines import llm_engine
from typer.testing import CliRunner

from benchmarks.baselines.placements.oracle_partition import OraclePartition
from stretto import DEFAULT, Runtime
from stretto.cli.commands import app
from stretto.model.errors import ConfigError
from stretto.router.config import RouterConfig
from stretto.schema.deployments import read_deployments
from stretto.schema.tables import Tables
from stretto.trace.agents.sharing import KnownPrompt, found_share, quantities, study_prompts
from stretto.trace.lines import TraceError


def known(blocks: str, num_tokens: int | None = None) -> KnownPrompt:
    """A prompt whose blocks of 10 tokens are letters."""
    return KnownPrompt(blocks, 10 * len(blocks) if num_tokens is None else num_tokens, 10, 5)


def test_shared_parts_and_key_portions() -> None:
    """Two share s and tool A, two share s and tool B; the last is alone after s."""
    prompts = [known("sAAAx"), known("sAAAyyy"), known("sBBz"), known("sBB", 28), known("sq")]
    studied = study_prompts(prompts)
    assert [one.shared_tokens for one in studied] == [40, 40, 30, 28, 10]
    assert [one.key_tokens for one in studied] == [30, 30, 20, 18, 10]
    assert [one.num_sharers for one in studied] == [2, 2, 2, 2, 5]
    assert [one.found_tokens for one in studied] == [0, 40, 10, 28, 10]
    assert found_share(studied) == 88 / (50 + 70 + 40 + 28 + 20)
    assert sorted(quantities(studied)["key_sharers"]) == [2, 2, 5]


def test_an_equal_block_after_an_unequal_beginning_is_not_shared() -> None:
    studied = study_prompts([known("abc"), known("xbc")])
    assert [one.shared_tokens for one in studied] == [0, 0]
    assert quantities(studied)["key_sharers"] == [0]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    lines = [
        {"timestamp": 0, "input_length": 1500, "output_length": 10, "hash_ids": [1, 2, 3]},
        {"timestamp": 5, "input_length": 1500, "output_length": 30, "hash_ids": [1, 2, 4]},
        {"timestamp": 9, "input_length": 700, "output_length": 20, "hash_ids": [7, 8]},
    ]
    file = tmp_path / "trace.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def test_the_command_shows_the_sharing_of_a_trace(trace: Path) -> None:
    result = CliRunner().invoke(app, ["workload", str(trace), "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert found["requests"] == 3
    assert found["shared_share"]["mean"] == pytest.approx(2 * (1024 / 1500) / 3)
    assert found["output_tokens"]["largest"] == 30
    table = CliRunner().invoke(app, ["workload", str(trace)])
    assert "27.7% of all tokens" in table.output


def test_the_command_shows_lengths_and_arrivals_of_an_azure_trace(tmp_path: Path) -> None:
    file = tmp_path / "azure.csv"
    file.write_text("arrival_s,prompt_tokens,output_tokens\n0.0,400,10\n0.1,300,100\n0.4,90,30\n0.42,80,8\n")
    result = CliRunner().invoke(app, ["workload", str(file), "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert found["gap_ms"]["p50"] == pytest.approx(100)
    assert found["prompt_to_output"]["largest"] == 40
    assert found["shared_share"]["mean"] == 0
    table = CliRunner().invoke(app, ["workload", str(file)])
    assert "between arrivals, ms" in table.output


def test_a_csv_file_that_is_no_azure_trace_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.csv"
    file.write_text("a,b\n1,2\n")
    result = CliRunner().invoke(app, ["workload", str(file)])
    assert isinstance(result.exception, TraceError)


def test_conversations_share_what_they_go_on_from(tmp_path: Path) -> None:
    first = {"role": "user", "content": "What is the capital of the country? " * 20}
    lines = [
        {"session_id": "a", "timestamp": 0, "messages": [first], "output_length": 8},
        {
            "session_id": "a",
            "delay": 10,
            "messages": [first, {"role": "assistant", "content": "x"}],
            "output_length": 8,
        },
    ]
    file = tmp_path / "chat.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = CliRunner().invoke(app, ["workload", str(file), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["shared_share"]["mean"] > 0.9


@pytest.mark.parametrize("placement", ["stretto", "e2", "round_robin"])
def test_a_trace_is_replayed_with_a_placement(trace: Path, placement: str) -> None:
    arguments = ["replay", str(trace), "--instances", "llm=2", "--placement", placement, "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)


def test_an_unknown_placement_is_refused(trace: Path) -> None:
    result = CliRunner().invoke(app, ["replay", str(trace), "--placement", "nearest"])
    assert result.exit_code != 0
    assert "there is no placement 'nearest'; there are least_seconds" in str(result.exception)


def test_a_placement_that_is_gone_is_refused_with_the_nearest_one(trace: Path) -> None:
    result = CliRunner().invoke(app, ["replay", str(trace), "--placement", "prefix_threshold"])
    assert isinstance(result.exception, ConfigError)
    written = Tables("[[engine]]\nname = 'llm'\nplacement = 'kv_cost'\n", "e.toml")
    for choose, nearest in (
        (lambda: RouterConfig(placement="oracle_partition"), "e2"),
        (lambda: Runtime([llm_engine("llm", placement="lmetric")]), "stretto"),
        (lambda: read_deployments(written), "stretto"),
        (lambda: result.exception, "e2"),
    ):
        with pytest.raises(ConfigError, match=f"is gone; the nearest is '{nearest}'; there are least"):
            raise choose()  # type: ignore[misc]


def test_a_placement_that_needs_knowledge_is_chosen_where_it_has_it() -> None:
    vocabulary = DEFAULT.with_placement("oracle_partition", lambda: OraclePartition({b"block": 1}))
    runtime = Runtime([llm_engine("llm", placement="oracle_partition")], vocabulary=vocabulary)
    assert list(runtime.deployments) == ["llm"]
