"""Machines as users give them: names, files, and the GPUs that nvidia-smi lists."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stretto.costs.carried_over import gpu_costs
from stretto.costs.presets import load_output_lengths, load_preset, write_preset
from stretto.model.errors import ConfigError
from stretto.planner.application import Application, AppRequest, ModelNode
from stretto.planner.detected import has_nvlink_pairs, machine_from
from stretto.planner.given_machine import given_machine
from stretto.planner.machine import MACHINES, PlanMachine, costs_by_tp, planned_model
from stretto.planner.problem import Problem

LLAMA_3_8B = {
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}
PAIRS = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV4\tSYS\tSYS\t0-31\t0\t\tN/A
GPU1\tNV4\t X \tSYS\tSYS\t0-31\t0\t\tN/A
GPU2\tSYS\tSYS\t X \tNV4\t32-63\t1\t\tN/A
GPU3\tSYS\tSYS\tNV4\t X \t32-63\t1\t\tN/A

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NV#  = Connection traversing a bonded set of # NVLinks
"""
ALL = """\
\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m
GPU0\t X \tNV12\tPXB\t0-47\t0
GPU1\tNV12\t X \tPXB\t0-47\t0
NIC0\tPXB\tPXB\t X \t\t
"""


def machine_file(folder: Path, text: str) -> PlanMachine:
    path = folder / "box.yaml"
    path.write_text(text, "utf-8")
    return given_machine(str(path))


def problem(machine: PlanMachine, model: str) -> Problem:
    app = Application("app", [ModelNode("chat", model, 50)])
    return Problem(app, [AppRequest("1", 20)], machine, load_output_lengths(), num_draws=1)


def test_a_machine_is_given_by_its_name() -> None:
    assert given_machine("8xa100-80g") is MACHINES["8xA100-80G"]
    with pytest.raises(ConfigError, match=r"'8xH10': the nearest is '8xH100'.*machine file.*'here'"):
        given_machine("8xH10")


def test_a_file_with_a_known_gpu(tmp_path: Path) -> None:
    machine = machine_file(tmp_path, "{gpu: l40s, count: 2, disk_gb_s: 6, link_gb_s: 50, memory_gib: 40}")
    assert (machine.name, machine.num_devices, machine.has_nvlink) == ("box", 2, False)
    assert (machine.storage.disk_bytes_s, machine.storage.link_bytes_s) == (6e9, 50e9)
    assert machine.costs.hardware is not None
    assert machine.costs.hardware.memory_bytes == 40 * 2**30
    assert machine.costs.stands_in == "A100-80G"


def test_nvlink_is_as_usual_for_the_gpu_unless_the_file_says_otherwise(tmp_path: Path) -> None:
    assert machine_file(tmp_path, "{gpu: H100-80G, count: 2}").has_nvlink
    assert not machine_file(tmp_path, "{gpu: L4, count: 2}").has_nvlink
    with_links = machine_file(tmp_path, "{gpu: A6000, count: 2, nvlink: true}")
    without = machine_file(tmp_path, "{gpu: A6000, count: 2}")
    model = planned_model("vicuna-13b-v1.5", without)
    linked, apart = (costs_by_tp(model, machine, 2048) for machine in (with_links, without))
    assert linked[2].step != apart[2].step
    assert linked[1].scheduler == apart[1].scheduler


def test_a_measured_gpu_without_nvlink_is_estimated_where_gpus_exchange_data(tmp_path: Path) -> None:
    machine = machine_file(tmp_path, "{gpu: A100-80G, count: 2, nvlink: false}")
    costs = costs_by_tp(planned_model("vicuna-13b-v1.5", machine), machine, 2048)
    assert not costs[1].is_estimated
    assert costs[2].is_estimated


def test_a_file_with_the_peak_figures_of_another_gpu(tmp_path: Path) -> None:
    text = "{gpu: {name: X1, bandwidth_gb_s: 2040, tflops: 312, cores: 108}, memory_gib: 80, count: 1}"
    machine = machine_file(tmp_path, text)
    model = planned_model("vicuna-13b-v1.5", machine)
    (cost,) = costs_by_tp(model, machine, 2048).values()
    assert cost.is_estimated
    measured = load_preset("A100-80G")
    assert machine.costs.step_numbers(model) == measured.shared[1]


def test_a_file_with_measured_costs_beside_it(tmp_path: Path) -> None:
    write_preset(load_preset("A100-80G"), tmp_path / "costs.json")
    machine = machine_file(tmp_path, "{costs: costs.json, count: 8}")
    assert machine.costs == load_preset("A100-80G")
    assert not problem(machine, "vicuna-13b-v1.5").estimates


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "while parsing"),
        ("7", "must be a mapping with count, name, gpu"),
        ("{gpu: L4}", "the key 'count' is missing; it must be a number of GPUs from 1 to 1024"),
        ("{gpu: L4, count: 0}", "count must be"),
        ("{gpu: L4, count: 1, count: 2}", "the key 'count' is there twice"),
        ("{gpu: L4, count: true}", "count must be"),
        ("{gpu: L4, count: 1, colour: red}", "unknown key 'colour'; known keys: count, name, gpu"),
        ("{count: 1}", "needs either gpu or costs"),
        ("{gpu: L4, costs: x.json, count: 1}", "needs either gpu or costs"),
        ("{gpu: L40, count: 1}", "no figures of the GPU 'L40': the nearest is 'L40S'.*bandwidth_gb_s"),
        (
            "{gpu: 7, count: 1}",
            "gpu must be a text or a mapping with name, bandwidth_gb_s, tflops, cores.*got 7",
        ),
        (
            "{gpu: {name: a, speed: 1}, count: 1}",
            "gpu: unknown key 'speed'; known keys: name, bandwidth_gb_s",
        ),
        (
            "{gpu: {name: a}, count: 1}",
            "gpu: the key 'bandwidth_gb_s' is missing; it must be a number above 0",
        ),
        ("{gpu: {name: a, cores: 8, tflops: 1, bandwidth_gb_s: 1}, count: 1}", "memory_gib is needed"),
        (
            "{gpu: {name: a, cores: 0, tflops: 1, bandwidth_gb_s: 1}, count: 1}",
            "gpu.cores must be a whole number",
        ),
        ("{costs: missing.json, count: 1}", "costs: preset .*missing.json"),
        ("{costs: [], count: 1}", "costs must be a text"),
        ("{costs: none.json, count: 1}", "none.json: has no step costs"),
        ("{costs: steps.json, count: 1, nvlink: true}", "nvlink has no use beside costs"),
        ("{gpu: L4, count: 1, nvlink: 1}", "nvlink must be true or false, got 1"),
        ("{gpu: L4, count: 1, disk_gb_s: .nan}", "disk_gb_s must be a number above 0"),
        ("{gpu: L4, count: 1, memory_gib: -1}", "memory_gib must be a number above 0"),
        ("{gpu: L4, count: 1, link_gb_s: fast}", "link_gb_s must be a number above 0, .*got 'fast'"),
        ("{gpu: L4, count: 1, name: 7}", "name must be a text"),
    ],
)
def test_a_wrong_machine_file_is_refused_with_the_field(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "none.json").write_text('{"name": "x", "about": "y"}', "utf-8")
    write_preset(load_preset("A6000"), tmp_path / "steps.json")
    with pytest.raises(ConfigError, match=rf"^machine .*box\.yaml: .*{message}"):
        machine_file(tmp_path, text)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"machine .*none\.yaml: .*No such file"):
        given_machine(str(tmp_path / "none.yaml"))


def test_a_detected_gpu_is_planned_with_its_memory() -> None:
    machine = machine_from("NVIDIA H200, 143771 MiB\n", "")
    assert (machine.name, machine.num_devices, machine.memory_bytes) == ("1xH200", 1, 143771 * 2**20)
    assert machine.costs == gpu_costs("H200")


@pytest.mark.parametrize(
    ("reported", "gpu"),
    [
        ("NVIDIA A100-SXM4-80GB, 81920 MiB", "A100-80G"),
        ("NVIDIA A100 80GB PCIe, 81920 MiB", "A100-80G"),
        ("A100-SXM4-40GB, 40536 MiB", "A100-40G"),
        ("NVIDIA H100 80GB HBM3, 81559 MiB", "H100-80G"),
        ("NVIDIA RTX A6000, 49140 MiB", "A6000"),
        ("Quadro RTX A6000, 48685 MiB", "A6000"),
        ("NVIDIA GeForce RTX 4090, 24564 MiB", "RTX-4090"),
    ],
)
def test_names_of_the_driver(reported: str, gpu: str) -> None:
    assert machine_from(reported, "").gpu == gpu


def test_nvlink_is_detected() -> None:
    four, two = "NVIDIA A100-SXM4-80GB, 81920 MiB\n" * 4, "NVIDIA A100-SXM4-80GB, 81920 MiB\n" * 2
    assert machine_from(four, PAIRS).has_nvlink
    assert machine_from(two, ALL).has_nvlink
    assert not machine_from(two, "").has_nvlink
    assert not machine_from(two, ALL.replace("NV12", "PHB")).has_nvlink
    apart = PAIRS.replace("NV4", "PIX", 1)
    assert not machine_from(four, apart).has_nvlink
    assert has_nvlink_pairs(PAIRS, 3), "the third GPU has no partner"


@pytest.mark.parametrize(
    ("reported", "message"),
    [
        ("", "lists no GPU"),
        ("NVIDIA L4, 23034 MiB\nNVIDIA L4, 23034 MiB\nNVIDIA A10, 23028 MiB", "1 × A10, 2 × L4"),
        (
            "NVIDIA RTX 6000 Ada Generation, 49140 MiB",
            "'RTX 6000 Ada Generation' is not known; write a machine",
        ),
        ("NVIDIA L4, [N/A]", r"gives a memory of '\[N/A\]'"),
    ],
)
def test_gpus_that_cannot_be_planned_for_are_refused(reported: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"machine 'here': .*{message}"):
        machine_from(reported, "")


def test_hidden_gpus_are_not_planned_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    with pytest.raises(ConfigError, match="CUDA_VISIBLE_DEVICES is '2,3'"):
        given_machine("here")


def test_this_machine_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A program named nvidia-smi stands for the driver's."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="lists no GPU"):
        given_machine("here")
    program = tmp_path / "nvidia-smi"
    program.write_text(
        f'#!/bin/sh\nif [ "$1" = topo ]; then printf "%s" "{PAIRS}"; exit; fi\n'
        'for gpu in 0 1 2 3; do echo "NVIDIA A100-SXM4-80GB, 81920 MiB"; done\n',
        "utf-8",
    )
    program.chmod(0o755)
    machine = given_machine("HERE")
    assert (machine.name, machine.num_devices, machine.has_nvlink) == ("4xA100-80G", 4, True)


def test_a_model_may_be_a_directory(tmp_path: Path) -> None:
    folder = tmp_path / "llama3"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA_3_8B), "utf-8")
    found = problem(MACHINES["8xA100-80G"], str(folder))
    assert found.workload.models["chat"].name == "llama3"
    assert all(cost.is_estimated for cost in found.costs[str(folder)].values())
    assert "llama3 were not measured on A100-80G; those of other models stand in" in found.estimates


def test_a_directory_with_the_name_of_a_measured_model_has_its_numbers_if_sizes_are_equal(
    tmp_path: Path,
) -> None:
    measured = load_preset("A100-80G").model("vicuna-13b-v1.5")
    sizes = {
        "num_hidden_layers": measured.num_layers,
        "hidden_size": measured.hidden_size,
        "num_attention_heads": measured.num_heads,
        "num_key_value_heads": measured.num_kv_heads,
        "intermediate_size": measured.intermediate_size,
        "vocab_size": measured.vocab_size,
        "max_position_embeddings": 2048,
    }
    folder = tmp_path / measured.name
    folder.mkdir()
    for layers, is_estimated in ((measured.num_layers, False), (4, True)):
        (folder / "config.json").write_text(json.dumps(sizes | {"num_hidden_layers": layers}), "utf-8")
        found = problem(MACHINES["8xA100-80G"], str(folder))
        assert found.costs[str(folder)][1].is_estimated is is_estimated
        assert found.workload.models["chat"].num_layers == layers


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (None, "the folder has no config.json"),
        ("{", "cannot be used"),
        ("[]", "cannot be used"),
        ("{}", "there is no 'num_attention_heads'"),
        (json.dumps(LLAMA_3_8B | {"quantization_config": {"quant_method": "gptq"}}), "quantized by 'gptq'"),
        (json.dumps(LLAMA_3_8B | {"hidden_size": -1}), "sizes must be positive"),
    ],
)
def test_a_directory_that_cannot_be_used_is_named_with_its_node(
    tmp_path: Path, config: str | None, message: str
) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    if config is not None:
        (folder / "config.json").write_text(config, "utf-8")
    with pytest.raises(ConfigError, match=f"node 'chat': model .*own: .*{message}"):
        problem(MACHINES["8xA100-80G"], str(folder))


def test_an_unknown_model_is_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match=r"node 'chat': .*'vicunna'.*name the folder of its config\.json"):
        problem(MACHINES["8xA100-80G"], "vicunna")


def test_estimates_say_what_stands_in() -> None:
    assert not problem(MACHINES["8xA100-80G"], "vicuna-13b-v1.5").estimates
    warning = problem(MACHINES["1xH200"], "vicuna-13b-v1.5").estimates
    assert "vicuna-13b-v1.5 were not measured on H200; those of A100-80G, scaled by peak figures" in warning


def test_a_gpu_known_by_kernels_alone_is_planned_with_whole_steps() -> None:
    """Kernels alone would leave out launching, preparation and sampling, and a start would take no time."""
    machine = MACHINES["8xH100"]
    model = planned_model("vicuna-13b-v1.5", machine)
    costs = costs_by_tp(model, machine, 2048)
    assert sorted(costs) == [1, 2, 4, 8]
    assert all(cost.loading_s > 5 and cost.is_estimated for cost in costs.values())
