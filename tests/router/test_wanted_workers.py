"""Which workers are added, changed and drained for what sources want, and what settings say of sources."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.engines.openai_server.config import KVEventsConfig
from stretto.http.tls import ClientTls
from stretto.model.errors import ConfigError
from stretto.router.config import RouterConfig
from stretto.router.discovery.source import Located
from stretto.router.discovery.sources import worker_sources
from stretto.router.discovery.wanted_workers import AddWorker, DrainWorker, ResizeWorker, WantedWorkers
from stretto.router.discovery.watched_file import read_workers_file
from stretto.router.found_workers import DnsConfig, KubernetesConfig
from stretto.router.worker_config import WorkerConfig


def config_of(number: int, **settings: object) -> WorkerConfig:
    """Return the settings of a worker."""
    return WorkerConfig(url=f"http://w{number}:8000", **settings)  # type: ignore[arg-type]


def test_what_is_wanted_is_added_and_what_is_not_drains() -> None:
    machine, (one, other) = WantedWorkers(), (config_of(1), config_of(2))
    first, second = machine.wanted("file", [one, other])
    assert (first, second) == (AddWorker("file", one), AddWorker("file", other))
    machine.added(AddWorker("file", one), 7)
    assert machine.wanted("file", [one, other]) == [AddWorker("file", other)], "it is tried again"
    machine.added(AddWorker("file", other), 8)
    assert machine.wanted("dns", [other]) == [AddWorker("dns", other)], "sources know nothing of each other"
    assert machine.wanted("file", [other]) == [DrainWorker(7)]
    assert machine.wanted("file", [other]) == []
    assert machine.wanted("file", []) == [DrainWorker(8)]


def test_a_new_number_of_slots_changes_in_place_and_anything_else_takes_another_worker() -> None:
    machine, one = WantedWorkers(), config_of(1, num_slots=4)
    machine.wanted("file", [one])
    machine.added(AddWorker("file", one), 7)
    larger = config_of(1, num_slots=9)
    assert machine.wanted("file", [larger]) == [ResizeWorker(7, 9)]
    assert machine.wanted("file", [larger]) == []
    keyed = config_of(1, num_slots=9, api_key="k")
    assert machine.wanted("file", [keyed]) == [DrainWorker(7), AddWorker("file", keyed)]


def test_of_entries_for_one_server_the_first_counts() -> None:
    first, same = config_of(1), WorkerConfig(url="http://w1:8000/v1/", num_slots=3)
    assert WantedWorkers().wanted("file", [first, same]) == [AddWorker("file", first)]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sets(st.tuples(st.integers(0, 4), st.integers(1, 2))), max_size=12))
def test_after_each_telling_there_are_the_workers_that_are_wanted(
    tellings: list[set[tuple[int, int]]],
) -> None:
    machine, there = WantedWorkers(), dict[int, WorkerConfig]()
    for number, told in enumerate(tellings):
        wanted = {worker: config_of(worker, num_slots=slots) for worker, slots in sorted(told)}
        for change in machine.wanted("file", list(wanted.values())):
            match change:
                case AddWorker():
                    assert change.config.url not in {one.url for one in there.values()}
                    there[len(there) + 100 * number] = change.config
                    machine.added(change, len(there) - 1 + 100 * number)
                case ResizeWorker(worker, num_slots):
                    url = there[worker].url
                    there[worker] = WorkerConfig(url=url, num_slots=num_slots)
                case DrainWorker(worker):
                    del there[worker]
        assert sorted(one.url for one in there.values()) == sorted(one.url for one in wanted.values())
        assert {one.url: one.num_slots for one in there.values()} == {
            one.url: one.num_slots for one in wanted.values()
        }


def test_a_worker_at_an_address_has_all_other_settings_of_its_entry() -> None:
    events = KVEventsConfig("tcp://vllm:5557", "tcp://vllm:5558")
    entry = WorkerConfig(
        url="https://vllm:8000/v1", num_slots=3, dns=DnsConfig(), kv_events=events, api_key="k"
    )
    there = Located(entry, ClientTls()).at("10.0.0.3")
    assert there.url == "https://10.0.0.3:8000/v1"
    assert there.kv_events == KVEventsConfig("tcp://10.0.0.3:5557", "tcp://10.0.0.3:5558")
    assert there.tls is not None
    assert (there.tls.server_name, there.num_slots, there.api_key) == ("vllm", 3, "k")
    assert not there.is_several
    named = WorkerConfig(url="https://vllm", tls=ClientTls(server_name="x"), dns=DnsConfig())
    at_six = Located(named, None).at("fd00::1", 8001)
    assert (at_six.url, at_six.tls and at_six.tls.server_name) == ("https://[fd00::1]:8001", "x")
    assert (
        Located(WorkerConfig(url="http://vllm:7000"), None).at("10.0.0.3", 8001).url == "http://10.0.0.3:7000"
    )
    with pytest.raises(ConfigError):
        Located(entry, None).at("no address/../")


def test_a_file_of_workers_has_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "workers.toml"
    file.write_text('[[router.worker]]\nurl = "http://a:1"\nnum_slots = 3\n')
    assert read_workers_file(file) == (WorkerConfig(url="http://a:1", num_slots=3),)
    file.write_text("")
    assert read_workers_file(file) == ()
    for text, named in (
        ("[router]\nport = 1", "workers.toml:2: unknown key 'port'"),
        ('[[router.worker]]\nurl = "a"', "must be a URL"),
        ('[[router.worker]]\nurl = "http://a"\ndns = {}', "belong into the settings"),
        ('[[router.worker]]\nurl = "http://a"\n[[router.worker]]\nurl = "http://a"', "given twice"),
        ("[[router", "no TOML"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match="workers") as refused:
            read_workers_file(file)
        assert named in refused.value.message, refused.value.message
    file.unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        worker_sources(RouterConfig(workers_file=str(file)))


def test_settings_that_cannot_be_are_refused() -> None:
    refused: tuple[tuple[Callable[[], object], str], ...] = (
        (lambda: config_of(1, dns=DnsConfig(), kubernetes=KubernetesConfig(selector="a=b")), "both given"),
        (lambda: DnsConfig(every_s=0), "every_s is 0"),
        (lambda: KubernetesConfig(selector=""), "must be as in"),
        (lambda: KubernetesConfig(selector="a=b", namespace="A_b"), "no name of one"),
    )
    for make, named in refused:
        with pytest.raises(ConfigError, match=named):
            make()
