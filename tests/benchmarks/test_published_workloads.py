from __future__ import annotations

import gzip
import json
import statistics
from collections import Counter
from itertools import islice, pairwise
from pathlib import Path

import pytest

from benchmarks.common.arrivals import bursts, poisson, zipf
from benchmarks.sim.published_workloads import (
    ARRIVALS,
    WORKLOADS,
    PublishedRequest,
    lognormal_lengths,
    prompt_text,
    submits,
    workload,
)
from stretto.costs.mean_output import num_tokens
from stretto.model.errors import ConfigError
from stretto.sim.agent_load import request_graph
from stretto.sim.synthetic_output import made_up_token_ids
from stretto.trace.lines import TraceError


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "traces"
    folder.mkdir()
    rows = "arrival_s,prompt_tokens,output_tokens\n0.0,374,44\n4.3,9000,109\n4.5,20,0\n"
    for file in ("azure_llm_2023_conv.csv", "azure_llm_2023_code.csv"):
        (folder / file).write_text(rows)
    (folder / "arxiv_summarization_lengths.csv").write_text("prompt_tokens,output_tokens\n3772,54\n")
    requests = [
        {"timestamp": 0, "input_length": 700, "output_length": 6, "hash_ids": [0, 1]},
        {"timestamp": 9, "input_length": 900, "output_length": 6, "hash_ids": [0, 2]},
    ]
    with gzip.open(folder / "mooncake_synthetic.jsonl.gz", "wt") as trace:
        trace.writelines(json.dumps(request) + "\n" for request in requests)
    return tmp_path


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("arrivals", ARRIVALS)
def test_every_load_arrives_at_times_of_its_own_and_is_the_same_for_the_same_seed(
    data: Path, name: str, arrivals: str
) -> None:
    found = workload(name, data, 3, max_tokens=5000)
    requests, again = (list(islice(found.arriving(ARRIVALS[arrivals](5.0, 3), 3), 50)) for _ in range(2))
    assert requests == again
    assert len(requests) == (2 if found.in_turn else 50)
    assert all(one.arrival_s < next_.arrival_s for one, next_ in pairwise(requests))
    assert all(r.output_tokens >= 1 and r.prompt_tokens + r.output_tokens < 5000 for r in requests)


def test_neighbours_in_a_trace_still_share_their_prefix(data: Path) -> None:
    first, second = workload("mooncake", data, 0, 5000).arriving(ARRIVALS["poisson"](1.0, 0), 0)
    assert prompt_text("a", first)[:2048] == prompt_text("b", second)[:2048]
    assert prompt_text("a", first) != prompt_text("b", second)[: len(prompt_text("a", first))]


def test_some_documents_are_asked_about_more_often_than_others() -> None:
    requests = workload("about-documents", None, 0, 8192).requests
    asked = Counter(request.blocks[0] for request in requests)
    assert asked[0] > 10 * asked[4 * 150]
    assert len({request.blocks[4:] for request in requests}) == len(requests)


def test_what_cannot_be_loaded_is_named(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no workload 'x'; there are like-conversations"):
        workload("x", data, 0, 100)
    with pytest.raises(ConfigError, match=r"needs --data DIR, with traces/azure_llm_2023_code\.csv"):
        workload("azure-code", None, 0, 100)
    with pytest.raises(ConfigError, match="no request has at most 100 tokens"):
        workload("arxiv", data, 0, 100)
    with pytest.raises(TraceError, match="cannot be read"):
        workload("arxiv", tmp_path / "nothing", 0, 100)


def test_prompts_of_mooncake_share_the_tokens_of_their_blocks(data: Path) -> None:
    first, second = workload("mooncake", data, 0, 5000).requests
    ids = [made_up_token_ids(prompt_text(name, one)) for name, one in (("a", first), ("b", second))]
    assert [len(tokens) for tokens in ids] == [700, 900]
    shared = [one == other for one, other in zip(*ids, strict=False)]
    assert all(shared[:512])
    assert not shared[512]


def test_arrivals_have_their_mean_rate_and_their_seed() -> None:
    for make in (poisson, bursts):
        times = list(islice(make(4.0, 1), 20_000))
        assert times == sorted(times)
        assert times == list(islice(make(4.0, 1), 20_000))
        assert times != list(islice(make(4.0, 2), 20_000))
        assert len(times) / times[-1] == pytest.approx(4.0, rel=0.1)

    def dispersion(times: list[float]) -> float:
        counts = [0] * (int(times[-1] / 5) + 1)
        for at_s in times:
            counts[int(at_s / 5)] += 1
        return statistics.variance(counts) / statistics.mean(counts)

    assert dispersion(list(islice(poisson(4.0, 1), 20_000))) == pytest.approx(1.0, rel=0.2)
    assert dispersion(list(islice(bursts(4.0, 1), 20_000))) > 5


def test_zipf_prefers_the_first() -> None:
    numbers = list(islice(zipf(100, 1.0, 0), 20_000))
    counts = [numbers.count(k) for k in (0, 1, 9)]
    assert counts[0] / counts[1] == pytest.approx(2, rel=0.15)
    assert counts[0] / counts[2] == pytest.approx(10, rel=0.25)
    assert max(numbers) < 100


def test_made_up_lengths_are_like_azures_conversations() -> None:
    pairs = lognormal_lengths(20_000, 0)
    assert statistics.mean(p for p, _ in pairs) == pytest.approx(1155, rel=0.08)
    assert statistics.mean(o for _, o in pairs) == pytest.approx(211, rel=0.12)
    assert min(min(pair) for pair in pairs) >= 1


def test_requests_become_queries_in_their_order() -> None:
    lengths: dict[str, int] = {}
    requests = [PublishedRequest(0.5, 12, 3), PublishedRequest(1.0, 40, 7)]
    made = list(submits(requests, request_graph(16), lengths.__setitem__))
    assert [(at_s, submit.query) for at_s, submit in made] == [(0.5, "r0"), (1.0, "r1")]
    assert lengths == {"r0": 3, "r1": 7}
    assert [num_tokens(str(submit.inputs["prompt"])) for _, submit in made] == [12, 40]
