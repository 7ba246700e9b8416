"""Emulated fleets: files, devices and their memory, sleep, and what is refused before it starts."""

from __future__ import annotations

import json
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.emulated import MODEL, emulating, fleet_of, running_servers

from benchmarks.emulate.servers import SteadyCost
from stretto.costs.carried_over import gpu_costs
from stretto.costs.presets import load_preset, write_preset
from stretto.emulate.fleet import PlannedFleet, check_fleet, read_fleet
from stretto.emulate.llm_plan import PlannedLLM
from stretto.emulate.real_time import check_real_time, predict_load
from stretto.emulate.serve import process_age_s
from stretto.emulate.wanted import Kind, WantedFleet, WantedServer
from stretto.model.errors import ConfigError

FLEET = """
[machine]
devices = ["A100-80G", "A100-80G", "A100-80G", "A100-80G", "RTX-3090"]
links = [[0, 1], [2, 3]]

[[replica]]
model = "llama-2-7b"
devices = [0]
loading_s = 0

[[replica]]
model = "vicuna-13b-v1.5"
served_name = "vicuna"
devices = [2, 3]
loading_s = 0

[[replica]]
kind = "embedding"
devices = [4]

[[replica]]
kind = "reranking"
devices = [4]
"""


def planned(text: str, folder: Path) -> PlannedFleet:
    path = folder / "fleet.toml"
    path.write_text(text)
    machine, servers = read_fleet(path)
    return check_fleet(WantedFleet(machine.devices, servers, machine.links, port=0))


def test_a_fleet_has_llms_of_several_models_and_engines_that_share_a_device(tmp_path: Path) -> None:
    fleet = planned(FLEET, tmp_path)
    with emulating(fleet) as urls:
        names = [httpx.get(f"{url}/v1/models").json()["data"][0]["id"] for url in urls]
        assert names == ["llama-2-7b", "vicuna", "bge-large-en-v1.5", "bge-reranker-large"]
        body = {"input": ["A kitchen.", "A table.", "A kitchen."]}
        data = httpx.post(f"{urls[2]}/v1/embeddings", json=body).json()["data"]
        vectors = [row["embedding"] for row in data]
        assert vectors[0] == vectors[2] != vectors[1]
        assert sum(value * value for value in vectors[0]) == pytest.approx(1, abs=1e-4)
        asked = {
            "query": "Where is the table?",
            "documents": ["In a house.", "The table is here."],
            "top_n": 1,
        }
        (result,) = httpx.post(f"{urls[3]}/rerank", json=asked).json()["results"]
        assert (result["index"], result["document"]) == (1, {"text": "The table is here."})


def test_vectors_may_be_asked_for_in_base64(tmp_path: Path) -> None:
    import base64

    import numpy as np

    with emulating(planned(FLEET, tmp_path)) as urls:
        url = f"{urls[2]}/v1/embeddings"
        (plain,) = httpx.post(url, json={"input": "A kitchen.", "dimensions": 64}).json()["data"]
        body = {"input": "A kitchen.", "dimensions": 64, "encoding_format": "base64"}
        (packed,) = httpx.post(url, json=body).json()["data"]
        unpacked = np.frombuffer(base64.b64decode(packed["embedding"]), np.float32)
        assert unpacked == pytest.approx(plain["embedding"], abs=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("devices = [2, 3]", "devices = [1, 2]"), r"server 1: devices \[1, 2\] are not linked"),
        (("devices = [2, 3]", "devices = [0, 1]"), r"server 1: needs .* of cuda:0, with server 0"),
        (("devices = [2, 3]", "devices = [3, 4]"), "server 1: its devices differ"),
        (("devices = [2, 3]", "devices = [7]"), "server 1: there is no device 7"),
        (("llama-2-7b", "llama-3-7b"), "no costs of the model 'llama-3-7b': the nearest is 'Llama-2-7b-hf'"),
        (("RTX-3090", "RTX-3080"), "no costs of the device 'RTX-3080': the nearest is 'RTX-3090'"),
        (
            ('kind = "embedding"\ndevices = [4]', 'kind = "embedding"\ndevices = [1]'),
            "'embedding' on the device",
        ),
        (("loading_s = 0", "loading = 0"), "fleet.toml:9: unknown key 'loading'"),
        (
            ('kind = "embedding"', 'kind = "drawing"'),
            "fleet.toml:18: kind must be one of embedding, llm, reranking, got 'drawing'",
        ),
        (("[machine]", "[machines]"), "unknown table or key 'machines'"),
        (("[[0, 1], [2, 3]]", "[[0, 9]]"), "links have device 9; the machine has 5"),
        (("loading_s = 0", "loading_s = nan"), "server 0: loading_s is nan"),
        (("loading_s = 0", "loading_s = -1"), "server 0: loading_s is -1"),
        (('kind = "embedding"', 'kind = "embedding"\nmemory_gib = inf'), "server 2: memory_gib is inf"),
        (('kind = "embedding"', 'kind = "embedding"\nmemory_gib = -1'), "server 2: memory_gib is -1"),
    ],
)
def test_an_impossible_fleet_is_refused_by_name(
    tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    assert change[0] in FLEET
    with pytest.raises(ConfigError, match=message):
        planned(FLEET.replace(*change, 1), tmp_path)


@pytest.mark.parametrize("percent", range(30, 70, 5))
def test_two_servers_may_have_all_of_a_device_together(percent: int) -> None:
    servers = tuple(
        WantedServer(devices=(0,), model=MODEL, memory_share=share / 100, max_context_tokens=16)
        for share in (percent, 100 - percent)
    )
    assert len(check_fleet(WantedFleet(("A100-80G",), servers)).servers) == 2


def test_a_device_without_costs_is_refused_with_the_nearest() -> None:
    server = WantedServer(devices=(0,), model=MODEL)
    with pytest.raises(ConfigError, match="no costs of the device 'A100': the nearest is 'A100-80G' or"):
        check_fleet(WantedFleet(("A100",), (server,)))


def test_a_device_may_be_a_file_like_a_preset(tmp_path: Path) -> None:
    file = tmp_path / "device.json"
    write_preset(gpu_costs("H200"), file)
    server = WantedServer(devices=(0,), model=MODEL)
    (planned,) = check_fleet(WantedFleet((str(file),), (server,))).servers
    assert isinstance(planned.service, PlannedLLM)
    assert planned.service.preset == gpu_costs("H200")
    write_preset(load_preset("RTX-3090"), file)
    with pytest.raises(ConfigError, match=r"device\.json: has no step costs"):
        check_fleet(WantedFleet((str(file),), (server,)))


def test_a_model_may_be_a_directory_with_its_sizes(tmp_path: Path) -> None:
    sizes = {
        "num_hidden_layers": 16,
        "hidden_size": 2048,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 8192,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
    }
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    (server,) = fleet_of(model=str(tmp_path)).servers
    assert server.held == {"cuda:0": -(-9 * 80 * 2**30 // 10)}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_context_tokens": 10**6}, "a context of 1000000 does not fit"),
        ({"max_context_tokens": 0}, "the longest context is 0 tokens"),
        ({"memory_share": 0.1}, "does not fit"),
        ({"block_tokens": 0}, "does not fit|block_tokens"),
        ({"max_batch_tokens": 100}, "must exceed max_running"),
        ({"speed": 0.0}, "the speed is"),
    ],
)
def test_limits_that_cannot_work_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fleet_of(**settings)


def test_a_fleet_that_this_machine_cannot_emulate_is_refused() -> None:
    assert check_real_time(fleet_of(4), 1).num_streams > 16
    with pytest.raises(ConfigError, match=r"cannot emulate the fleet in real time: .*--speed"):
        check_real_time(fleet_of(4, speed=100.0), 1)


def test_a_fleet_with_a_process_for_each_server_streams_on_all_cores() -> None:
    fleet = fleet_of(4, speed=12.0)
    assert check_real_time(fleet, 4).num_streams > check_real_time(fleet, 1).num_streams
    assert check_real_time(fleet_of(16), 16).num_streams == 16 * check_real_time(fleet_of(1), 1).num_streams


def test_a_server_that_needs_more_than_its_core_is_refused_however_many_there_are() -> None:
    idle, busy = fleet_of(3).servers, fleet_of(1, max_sequences=1).servers
    assert isinstance(busy[0].service, PlannedLLM)
    fast = replace(busy[0].service, simulated=replace(busy[0].service.simulated, cost=SteadyCost(1e-4)))
    fleet = PlannedFleet((*idle, replace(busy[0], service=fast)))
    with pytest.raises(ConfigError, match=r"server 3 would need 1\.5 cores and can use 1; use --speed 0\.59"):
        check_real_time(fleet, 4)


def test_embedding_and_reranking_are_part_of_the_predicted_load() -> None:
    kinds: tuple[Kind, ...] = ("embedding", "reranking")
    servers = tuple(WantedServer(devices=(number,), kind=kind) for number, kind in enumerate(kinds))
    fleet = check_fleet(WantedFleet(("RTX-3090",) * 2, servers))
    load = predict_load(fleet)
    assert 0.2 < load.whole < 0.6
    assert load.num_streams == 0
    busy = replace(fleet, speed=10.0)
    assert check_real_time(busy, 1) == predict_load(busy), "they are seldom busy for long, and not refused"


def test_the_predicted_load_of_streams_is_near_the_measured_one() -> None:
    """16 servers with steps of 30 ms that stream 8 answers each took 0.25 of a core on a quiet machine."""
    predicted = 0.0
    for server in fleet_of(16, max_sequences=8).servers:
        assert isinstance(server.service, PlannedLLM)
        simulated = replace(server.service.simulated, cost=SteadyCost(0.03))
        steady = replace(server, service=replace(server.service, simulated=simulated))
        predicted += predict_load(PlannedFleet((steady,))).streamed
    assert predicted == pytest.approx(0.25, rel=0.25)


def test_a_port_in_use_is_refused_before_anything_answers() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        server = WantedServer(devices=(0,), model=MODEL, port=port)
        with (
            pytest.raises(ConfigError, match=f"port {port} of 127.0.0.1 cannot be used"),
            emulating(check_fleet(WantedFleet(("A100-80G",), (server,)))),
        ):
            pass


def test_two_servers_cannot_have_one_port() -> None:
    servers = (
        WantedServer(devices=(0,), model=MODEL, port=9),
        WantedServer(devices=(1,), model=MODEL, port=9),
    )
    with pytest.raises(ConfigError, match="server 1: port 9 is taken"):
        check_fleet(WantedFleet(("A100-80G",) * 2, servers))


def test_a_server_answers_only_when_its_model_is_loaded() -> None:
    fleet = fleet_of(loading_s=None, speed=20.0)
    assert fleet.servers[0].loading_s > 10
    with emulating(fleet) as (url,):
        assert httpx.get(f"{url}/health").status_code == 200


def test_servers_on_one_device_take_turns() -> None:
    awake = WantedServer(devices=(0,), model=MODEL, port=0, loading_s=0)
    asleep = WantedServer(devices=(0,), model=MODEL, port=0, loading_s=0, asleep=True)
    with emulating(check_fleet(WantedFleet(("A100-80G",), (awake, asleep)))) as (first, second):
        full = httpx.post(f"{second}/wake_up")
        assert full.status_code == 500
        assert "out of memory" in full.json()["error"]["message"]
        assert httpx.post(f"{first}/sleep?level=1").status_code == 200
        assert httpx.get(f"{first}/is_sleeping").json() == {"is_sleeping": True}
        assert httpx.post(f"{second}/wake_up").status_code == 200
        ask = {"prompt": "Hello", "max_tokens": 2}
        assert httpx.post(f"{second}/v1/completions", json=ask).status_code == 200
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{first}/v1/completions", json=ask, timeout=0.2)
        assert httpx.post(f"{first}/wake_up").status_code == 500
        assert httpx.post(f"{first}/sleep?level=9").status_code == 400


def test_the_start_of_the_process_is_part_of_the_loading_time() -> None:
    with running_servers(fleet_of(loading_s=5000.0), begun_s=5000.0) as servers:
        assert httpx.get(f"{servers.urls[0]}/health").is_success
    begin_s = time.monotonic()
    age_s = process_age_s()
    time.sleep(0.05)
    assert 0.03 <= process_age_s() - age_s <= time.monotonic() - begin_s + 0.05


def test_models_whose_steps_were_not_measured_are_emulated_by_their_sizes() -> None:
    service = fleet_of(model="Mistral-7B-Instruct-v0.2").servers[0].service
    assert isinstance(service, PlannedLLM)
    assert service.sizes.num_kv_heads == 8
