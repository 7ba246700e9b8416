"""What a run has learned of programs is kept in a file, and orders the programs of the next run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.runtime_engines import COMPLETE, fake_llm, graph
from support.virtual_loop import in_real_time

from benchmarks.common.fake_engines import FakeLLM, FakeLLMConfig
from stretto import Runtime
from stretto.costs.learned_work import LearnedWork
from stretto.model.deployment import Deployment, deploy
from stretto.model.errors import ConfigError, UserError
from stretto.model.profile import Profile
from stretto.runtime.learned_file import LearnedFile
from stretto.sched.actions import Admit
from stretto.sim.driver import VirtualDriver

SHORT = graph(
    """
    graph short(%q: text)
      %k = prefill([c"Answer: ", %q]) : kv @llm
      %a = decode(%k) {max_tokens=20} : text @llm
      return %a
    """
)
LONG = graph(
    """
    graph long(%q: text)
      %k = prefill([c"Answer: ", %q]) : kv @llm
      %a = decode(%k) {max_tokens=20} : text @llm
      %l = prefill([c"And then: ", %a]) : kv @llm
      %b = decode(%l) {max_tokens=200} : text @llm
      return %b
    """
)


def engine(per_unit_s: float = 0.001, name: str = "llm") -> Deployment:
    """An LLM that runs one request at a time."""
    profile = Profile(per_unit_s=per_unit_s, per_output_s=0.01)
    return deploy(name, FakeLLM, FakeLLMConfig(), contract="llm", max_running=1, profile=profile)


def order_of(learned: Mapping[str, LearnedWork]) -> list[str]:
    """Return the queries in the order in which their first calls are admitted: long ones come first."""
    driver = VirtualDriver([engine()], learned=learned)
    for number in range(4):
        driver.submit(f"long {number}", LONG, {"q": "question"}, at_s=0.0)
        driver.submit(f"short {number}", SHORT, {"q": "question"}, at_s=0.001)
    driver.run()
    return list(dict.fromkeys(action.task.query for _, action in driver.actions if isinstance(action, Admit)))


def states(learned: Mapping[str, LearnedWork]) -> dict[str, list[dict[str, object]]]:
    return {name: work.state() for name, work in learned.items()}


@pytest.fixture
def file(tmp_path: Path) -> LearnedFile:
    """A file of what a run of both kinds of programs has learned."""
    driver = VirtualDriver([engine()])
    for number in range(10):
        driver.submit(f"long {number}", LONG, {"q": "question"}, at_s=10.0 * number)
        driver.submit(f"short {number}", SHORT, {"q": "question"}, at_s=10.0 * number + 5.0)
    driver.run()
    file = LearnedFile(tmp_path / "folder" / "learned.json")
    assert file.read([engine()]) == {}
    file.write([engine()], states(driver.system.engines.learned()))
    return file


def test_a_run_that_reads_it_serves_programs_as_the_run_that_learned(file: LearnedFile) -> None:
    cold = order_of({})
    assert cold[0] == "long 0"
    warm = order_of(file.read([engine()]))
    assert warm[0] == "long 0", "it was alone"
    assert [query.split()[0] for query in warm[1:]] == ["short"] * 4 + ["long"] * 3
    assert cold[1].startswith("long")


def test_another_process_reads_the_same(file: LearnedFile) -> None:
    script = (
        "import json, sys\nfrom pathlib import Path\nfrom stretto.runtime.learned_file import LearnedFile\n"
        "file = LearnedFile(Path(sys.argv[1]))\n"
        "print(json.dumps({key: work.state() for key, work in file.read_all().items()}))"
    )
    command = [sys.executable, "-c", script, str(file.path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    (state,) = json.loads(ended.stdout).values()
    assert state == file.read([engine()])["llm"].state()
    assert {row["source"][0] for row in state} == {"long", "short"}


def test_what_was_learned_with_other_prices_is_left_aside(file: LearnedFile) -> None:
    assert file.read([engine(0.0011)]).keys() == {"llm"}
    assert file.read([engine(0.1)]) == {}
    file.write([engine(0.1)], states(file.read_all()) | {"llm": LearnedWork().state()})
    assert file.read([engine()]), "nothing was learned, so nothing is replaced"


def test_engines_that_do_not_run_keep_what_they_learned(file: LearnedFile) -> None:
    before = file.read([engine()])["llm"].state()
    other = engine(name="other")
    file.write([other], {"other": before})
    assert file.read([engine()])["llm"].state() == before
    assert len(file.read_all()) == 2


def test_the_file_does_not_grow_without_end(file: LearnedFile) -> None:
    (state,) = states(file.read_all()).values()
    engines = [engine(name=f"llm {number}") for number in range(70)]
    file.write(engines, {one.name: state for one in engines})
    assert len(file.read_all()) == 64
    assert set(file.read(engines)) == {one.name for one in engines[6:]}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"format": 1}',
        '{"format": 1, "engines": {"llm:FakeLLM": {"sources": []}}}',
        '{"format": 1, "engines": {"llm:FakeLLM": {"prices_s": [1], "sources": []}}}',
        '{"format": 1, "engines": {"llm:FakeLLM": {"prices_s": ["x", 1], "sources": []}}}',
        '{"format": 1, "engines": {"llm:FakeLLM": {"prices_s": [1, -1], "sources": []}}}',
        '{"format": 1, "engines": []}',
        "[" * 100_000,
        '{"format": 2, "engines": {}}',
    ],
)
def test_a_damaged_file_is_refused_and_stays(file: LearnedFile, text: str) -> None:
    file.path.write_text(text)
    for use in (
        lambda: file.read([engine()]),
        file.read_all,
        lambda: file.write([engine()], {"llm": [{"source": ["x"]}]}),
    ):
        with pytest.raises(ConfigError, match=r"learned\.json is .*; remove it"):
            use()
    assert file.path.read_text() == text


def test_a_damaged_engine_is_refused(file: LearnedFile) -> None:
    kept = json.loads(file.path.read_text())
    kept["engines"]["llm:FakeLLM"]["sources"][0]["cells"] = "x"
    file.path.write_text(json.dumps(kept))
    with pytest.raises(ConfigError, match=r"learned\.json is not a file of what was learned"):
        file.read([engine()])


def test_a_file_that_cannot_be_written_is_an_error_of_the_user(file: LearnedFile) -> None:
    nowhere = LearnedFile(file.path / "below a file" / "learned.json")
    with pytest.raises(UserError, match="cannot be written"):
        nowhere.write([engine()], states(file.read([engine()])))


@in_real_time
async def test_a_runtime_goes_on_learning_from_what_is_known(tmp_path: Path) -> None:
    file, llm = LearnedFile(tmp_path / "learned.json"), fake_llm()
    for number in (1, 2):
        async with Runtime([llm], learned=file.read([llm])) as runtime:
            await runtime.run(COMPLETE, {"text": "x"})
            await runtime.drain()
            file.write([llm], states(runtime.learned()))
        (row,) = file.read([llm])["llm"].rows()
        assert (row.kind, row.num) == ("complete", number)
    with pytest.raises(ConfigError, match="learned of engine 'another'"):
        Runtime([llm], learned={"another": LearnedWork()})
