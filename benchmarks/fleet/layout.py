"""The emulated fleet: LLM servers on A100s, one server that embeds, and one that reranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property

from stretto.emulate.fleet import PlannedBatches, PlannedFleet, check_fleet
from stretto.emulate.llm_plan import PlannedLLM
from stretto.emulate.wanted import WantedFleet, WantedServer
from stretto.model.profile import Profile
from stretto.sizing.servers import llm_profile

MODEL = "llama-2-7b"
_LLM_DEVICE = "A100-80G"
_OTHER_DEVICE = "RTX-3090"
_KINDS = ("embedding", "reranking")
_SEARCH_S = 0.001
"""Assumed seconds of a vector search in memory, for planning. The search itself is real."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The size of a fleet.

    Attributes:
        num_llms: number of LLM servers, each on a device of its own.
        max_sequences: sequences that each of them runs at once.
    """

    num_llms: int = 2
    max_sequences: int = 16

    @property
    def num_gpus(self) -> int:
        """Number of devices of the whole fleet."""
        return self.num_llms + len(_KINDS)

    def wanted(self, ports: tuple[int, ...], speed: float) -> WantedFleet:
        """Return the fleet with its servers at `ports`: the LLMs, then embedding, then reranking."""
        llm = WantedServer(
            devices=(),
            model=MODEL,
            max_sequences=self.max_sequences,
            scheduling="priority",
            loading_s=0.0,
        )
        servers = [replace(llm, devices=(number,)) for number in range(self.num_llms)]
        for number, kind in enumerate(_KINDS, self.num_llms):
            servers.append(WantedServer(devices=(number,), kind=kind))  # type: ignore[arg-type]
        placed = tuple(replace(one, port=port) for one, port in zip(servers, ports, strict=True))
        devices = (_LLM_DEVICE,) * self.num_llms + (_OTHER_DEVICE,) * len(_KINDS)
        return WantedFleet(devices, placed, speed=speed)


@dataclass(frozen=True)
class Planned:
    """A fleet with its predicted times."""

    layout: Layout

    @cached_property
    def fleet(self) -> PlannedFleet:
        """The fleet as it is emulated, at no particular ports."""
        return check_fleet(self.layout.wanted((0,) * self.layout.num_gpus, 1.0))

    @property
    def llm(self) -> PlannedLLM:
        """One of the LLM servers."""
        service = self.fleet.servers[0].service
        assert isinstance(service, PlannedLLM)
        return service

    @property
    def kv_tokens(self) -> int:
        """Number of tokens whose KV an LLM server can hold."""
        scheduler = self.llm.simulated.scheduler
        return scheduler.num_blocks * scheduler.block_tokens

    def profiles(self) -> dict[str, Profile]:
        """Return the predicted times of all engines, in emulated seconds."""
        found = {"llm": llm_profile(self.llm.simulated.cost)}
        for server in self.fleet.servers[self.layout.num_llms :]:
            assert isinstance(server.service, PlannedBatches)
            found[server.service.kind] = server.service.profile
        found["chunking"] = Profile(0.0, 0.0, max_efficient_batch=64)
        found["vectors"] = Profile(_SEARCH_S, 0.0, max_efficient_batch=1024)
        return found

    def real_profiles(self, speed: float) -> Mapping[str, Mapping[str, float]]:
        """Return the predicted times in real seconds, as plain data."""
        return {name: asdict(_slower(profile, speed)) for name, profile in self.profiles().items()}


def _slower(profile: Profile, speed: float) -> Profile:
    return replace(
        profile,
        base_s=profile.base_s / speed,
        per_unit_s=profile.per_unit_s / speed,
        per_output_s=profile.per_output_s / speed,
        per_neighbour_s=profile.per_neighbour_s / speed,
    )
