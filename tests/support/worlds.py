"""Engines to run graphs on in virtual time: how many, how fast, by which policy, and how they fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

from benchmarks.common.fake_engines import FakeBatch, FakeBatchConfig, FakeLLM, FakeLLMConfig
from stretto.graph.compile import compile_graph
from stretto.graph.execution_graph import ExecutionGraph
from stretto.graph.passes.pipeline import PASSES, apply_pass
from stretto.model.deployment import Deployment, deploy
from stretto.model.errors import EngineUnavailable
from stretto.model.profile import Profile
from stretto.model.tasks import LLMTask, Task
from stretto.sched.actions import Reply
from stretto.sched.orders import ORDERS
from stretto.sim.driver import VirtualDriver
from stretto.sim.profiled_llm import ProfiledLLM
from support.random_apps import App, expander

BATCH_ENGINES = ("cpu", "embedding", "vectors", "rerank", "web")
LLM_ENGINES = ("llm", "judge")


@dataclass(frozen=True)
class Setup:
    """One engine of a world. `fails_at` counts its tasks: those are lost once each."""

    profile: Profile = Profile()
    instances: int = 1
    policy: str = "topology_aware"
    max_batch: int | None = None
    max_running: int = 16
    fails_at: frozenset[int] = frozenset()


@dataclass(frozen=True)
class World:
    """A setting for a run: everything that must not change its answers."""

    setups: Mapping[str, Setup] = field(default_factory=dict)
    seed: int = 0
    jitter: float = 0.0
    losses: tuple[tuple[str, int, float], ...] = ()

    @property
    def profiles(self) -> dict[str, Profile]:
        """Profiles by engine."""
        return {name: setup.profile for name, setup in self.setups.items()}

    def engines(
        self, fail_on: Callable[[Task | LLMTask], BaseException | None] | None = None
    ) -> list[Deployment]:
        """Return new engines; `fail_on` adds failures of its own."""
        engines = []
        for name in (*BATCH_ENGINES, *LLM_ENGINES):
            setup = self.setups.get(name, Setup())
            fail = _FailOnce(setup.fails_at, fail_on)
            is_llm = name in LLM_ENGINES
            engines.append(
                deploy(
                    name,
                    FakeLLM if is_llm else FakeBatch,
                    FakeLLMConfig(fail_on=fail) if is_llm else FakeBatchConfig(fail_on=fail),
                    contract="llm" if is_llm else "batch",
                    instances=setup.instances,
                    policy=setup.policy,
                    max_batch=setup.max_batch,
                    max_running=setup.max_running,
                    max_attempts=50,
                    keeps_state=is_llm or name == "vectors",
                    profile=setup.profile,
                )
            )
        return engines

    def driver(
        self, fail_on: Callable[[Task | LLMTask], BaseException | None] | None = None
    ) -> VirtualDriver:
        """Return a checked driver of this world, with its losses scheduled."""
        driver = VirtualDriver(
            self.engines(fail_on),
            expand=expander(self.profiles),
            seed=self.seed,
            jitter=self.jitter,
            check=True,
        )
        for name, instance, at_s in self.losses:
            driver.lose(name, instance % self.setups.get(name, Setup()).instances, at_s)
        return driver

    def compile(self, app: App, passes: Sequence[str]) -> ExecutionGraph:
        """Compile `app` after `passes`, in that order."""
        graph = app.graph
        for name in passes:
            graph = apply_pass(name, PASSES[name], graph, self.profiles)
        return compile_graph(graph, self.profiles)

    def run(self, app: App, passes: Sequence[str] = ()) -> tuple[Reply, VirtualDriver]:
        """Run one query of `app`."""
        driver = self.driver()
        driver.submit("q", self.compile(app, passes), app.inputs, passes=tuple(passes))
        return driver.run()["q"], driver


class _FailOnce:
    def __init__(
        self, at: frozenset[int], fail_on: Callable[[Task | LLMTask], BaseException | None] | None
    ) -> None:
        self._at = at
        self._fail_on = fail_on
        self._count = 0

    def __repr__(self) -> str:
        """Return a text without addresses, so that equal runs print alike."""
        return f"_FailOnce({sorted(self._at)})"

    def __call__(self, task: Task | LLMTask) -> BaseException | None:
        self._count += 1
        if self._count - 1 in self._at:
            return EngineUnavailable("not now")
        return None if self._fail_on is None else self._fail_on(task)


def assert_nothing_is_left(driver: VirtualDriver) -> None:
    """Check that there is no queue, no running work and no state of any query."""
    assert driver.system.is_idle()
    for name in BATCH_ENGINES:
        engine = driver.instances.batch_engines[name]
        assert isinstance(engine, FakeBatch)
        assert engine._collections == {}, name
    for llm in driver.instances.llms.values():
        assert isinstance(llm, ProfiledLLM)
        assert not llm._held
        assert not llm._live


def setups(*, llm: bool) -> st.SearchStrategy[Setup]:
    """Draw an engine: fast or slow, small or large, with any policy and some failures."""
    profiles = st.builds(
        Profile,
        base_s=st.sampled_from((0.0, 0.001, 0.05)),
        per_unit_s=st.sampled_from((0.0, 0.0001, 0.01)),
        max_efficient_batch=st.sampled_from((1, 2, 3, 8, 128)),
        per_output_s=st.sampled_from((0.0, 0.001, 0.02)),
    )
    return st.builds(
        Setup,
        profile=profiles,
        instances=st.integers(1, 3),
        policy=st.sampled_from(sorted(ORDERS)),
        max_batch=st.sampled_from((20, 60, 200, None) if llm else (1, 2, 5, None)),
        max_running=st.integers(1, 4),
        fails_at=st.frozensets(st.integers(0, 12), max_size=3),
    )


def worlds() -> st.SearchStrategy[World]:
    """Draw a world: any engines, any timing, up to four instances lost."""
    names = (*BATCH_ENGINES, *LLM_ENGINES)
    losses = st.tuples(st.sampled_from(names), st.integers(0, 2), st.floats(0.0, 1.5))
    return st.builds(
        World,
        setups=st.fixed_dictionaries({name: setups(llm=name in LLM_ENGINES) for name in names}),
        seed=st.integers(0, 1000),
        jitter=st.sampled_from((0.0, 0.1, 1.0)),
        losses=st.lists(losses, max_size=4).map(tuple),
    )
