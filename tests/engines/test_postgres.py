"""What PostgreSQL adds to vector search: lasting collections, versions of documents, a server that may go."""

from __future__ import annotations

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psycopg
import pytest

from stretto.engines.batch import embedded_postgres as module
from stretto.engines.batch.embedded_postgres import EmbeddedServer
from stretto.engines.batch.postgres import Collection, PostgresConfig, PostgresVectors
from stretto.model.errors import ConfigError, EngineUnavailable
from stretto.model.tasks import Task
from stretto.model.values import Chunk, Document, Hit, Mark, Section

VECTOR = np.array([1, 0], np.float32)


def document(source: str = "a.txt", sha: str = "sha 1") -> Document:
    return Document(source, (Section("text"),), sha)


def chunks_of(document: Document, num_chunks: int = 3) -> list[Chunk]:
    return [
        Chunk(document.source, index, f"{document.sha256} {index}", None, None, document.sha256, num_chunks)
        for index in range(num_chunks)
    ]


def ingest(engine: PostgresVectors, chunks: list[Chunk], recipe: str = "", collection: str = "c") -> None:
    inputs = {"chunks": chunks, "vectors": [VECTOR] * len(chunks), "collection": collection}
    task = Task(1, "q", "s", "ingest", inputs, {"recipe": recipe}, len(chunks), ("chunks", "vectors"))
    engine.run([task])


def search(engine: PostgresVectors, collection: str = "c") -> list[Hit]:
    inputs = {"queries": VECTOR, "collection": collection}
    (hits,) = engine.run([Task(1, "q", "s", "search", inputs, {"k": 100})])
    assert isinstance(hits, list)
    return hits


def names(engine: PostgresVectors) -> list[str]:
    return [collection.name for collection in engine.collections()]


def texts(engine: PostgresVectors) -> list[str]:
    return [hit.chunk.text for hit in search(engine)]


# Documents and their versions


def test_document_is_missing_until_all_its_chunks_are_there(postgres: PostgresVectors) -> None:
    one, two = document("a.txt"), document("b.txt")
    assert postgres.missing("c", [one, two], "r") == [one, two]
    ingest(postgres, chunks_of(one), "r")
    ingest(postgres, chunks_of(two)[:2], "r")  # cut off here
    assert postgres.missing("c", [one, two], "r") == [two]
    ingest(postgres, chunks_of(two)[1:], "r")
    assert postgres.missing("c", [one, two], "r") == []
    assert postgres.missing("other", [one], "r") == [one]


def test_asking_what_is_missing_changes_nothing(postgres: PostgresVectors) -> None:
    ingest(postgres, chunks_of(document()), "r")
    new = document(sha="sha 2")
    assert postgres.missing("c", [new], "r") == [new]
    assert postgres.missing("c", [document()], "other") == [document()]
    assert texts(postgres) == ["sha 1 0", "sha 1 1", "sha 1 2"]


@pytest.mark.parametrize(("sha", "recipe"), [("sha 2", "r"), ("sha 1", "other")])
def test_a_version_is_found_when_it_is_complete_and_then_alone(
    postgres: PostgresVectors, sha: str, recipe: str
) -> None:
    ingest(postgres, chunks_of(document(), 3), "r")
    new = chunks_of(document(sha=sha), 2)
    ingest(postgres, new[:1], recipe)
    assert texts(postgres) == ["sha 1 0", "sha 1 1", "sha 1 2"]
    ingest(postgres, new[1:], recipe)
    assert texts(postgres) == [f"{sha} 0", f"{sha} 1"]
    assert postgres.missing("c", [document(sha=sha)], recipe) == []
    assert postgres.missing("c", [document()], "r") == ([document()])


def test_a_first_version_is_not_found_before_it_is_complete(postgres: PostgresVectors) -> None:
    ingest(postgres, chunks_of(document(), 2)[1:])
    assert texts(postgres) == []
    assert names(postgres) == []
    ingest(postgres, chunks_of(document(), 2)[:1])
    assert texts(postgres) == ["sha 1 0", "sha 1 1"]


def test_another_version_of_one_document_leaves_the_others(postgres: PostgresVectors) -> None:
    ingest(postgres, [*chunks_of(document(), 1), *chunks_of(document("b.txt", "b"), 1)])
    ingest(postgres, chunks_of(document(sha="sha 2"), 1))
    assert texts(postgres) == ["sha 2 0", "b 0"]


def test_chunks_that_do_not_know_their_number_are_found_at_once(postgres: PostgresVectors) -> None:
    ingest(postgres, [Chunk("a.txt", 0, "one"), Chunk("a.txt", 1, "two")])
    assert texts(postgres) == ["one", "two"]


def test_instances_that_ingest_a_document_together_complete_it(
    postgres: PostgresVectors, data_dir: Path
) -> None:
    """Neither sees the other's chunks until one of them has committed."""
    chunks = chunks_of(document(), 200)

    def ingest_some(share: int) -> None:
        engine = PostgresVectors(PostgresConfig(data_dir=data_dir))
        for chunk in chunks[share::2]:
            ingest(engine, [chunk])
        engine.close()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(ingest_some, range(2)))
    assert len(search(postgres)) == 100
    assert postgres.collections() == [Collection("c", 1, 200, ("",))]


def test_half_characters_are_refused(postgres: PostgresVectors) -> None:
    with pytest.raises(ConfigError, match="Unicode"):
        ingest(postgres, [Chunk("caf\udce9.txt", 0, "text")])


def test_failed_batch_stores_nothing(postgres: PostgresVectors) -> None:
    chunks = chunks_of(document(), 2)
    inputs = {"chunks": chunks, "vectors": [VECTOR, np.ones(3, np.float32)], "collection": "c"}
    with pytest.raises(ConfigError):
        postgres.run([Task(1, "q", "s", "ingest", inputs, {}, 2, ("chunks", "vectors"))])
    assert search(postgres) == []


@pytest.mark.parametrize("op", ["ingest", "search"])
def test_what_belongs_to_one_query_is_refused(postgres: PostgresVectors, op: str) -> None:
    inputs = {"chunks": Chunk("a", 0, "a"), "vectors": VECTOR, "queries": VECTOR}
    with pytest.raises(ConfigError, match=r"the step.*'collection'"):
        postgres.run([Task(1, "q", "the step", op, inputs, {})])


# Collections


def test_collections_are_listed_and_dropped(postgres: PostgresVectors) -> None:
    assert postgres.collections() == []
    for name in ("two", "one"):
        ingest(postgres, chunks_of(document()), "r", name)
    ingest(postgres, chunks_of(document("b.txt", "b"), 2), "s", "one")
    assert postgres.collections() == [Collection("one", 2, 5, ("r", "s")), Collection("two", 1, 3, ("r",))]
    assert postgres.drop("two")
    assert not postgres.drop("never seen")
    assert names(postgres) == ["one"]


def test_values_are_never_read_as_sql(postgres: PostgresVectors) -> None:
    name = "c'; DROP TABLE stretto_chunks; --%s"
    strange = Chunk(name, 0, name, name, None, name, 1)
    ingest(postgres, [strange], recipe=name, collection=name)
    assert search(postgres, collection=name) == [Hit(strange, 1.0)]
    assert postgres.missing(name, [Document(name, (), name)], name) == []
    assert names(postgres) == [name]


def test_another_session_sees_collections(postgres: PostgresVectors, data_dir: Path) -> None:
    ingest(postgres, chunks_of(document()))
    other = PostgresVectors(PostgresConfig(data_dir=data_dir))
    assert len(search(other)) == 3
    other.close()


def test_marks_of_sections_are_stored(postgres: PostgresVectors) -> None:
    chunk = Chunk("a.pdf", 0, "one two", "T", 1, marks=(Mark(3, None, 2), Mark(5, "“T”", 2)))
    ingest(postgres, [chunk])
    assert [hit.chunk for hit in search(postgres)] == [chunk]


def test_a_collection_of_an_earlier_version_is_searched_and_added_to(data_dir: Path) -> None:
    """Its table has no marks of sections."""
    server = EmbeddedServer(data_dir)
    dsn = server.start()
    chunk = Chunk("old.pdf", 0, "one two", "T", 1)
    engine = PostgresVectors(PostgresConfig(dsn=dsn))
    ingest(engine, [chunk], "tokens=256 overlap=30 model=m")
    engine.close()
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute("ALTER TABLE stretto_document_chunks DROP COLUMN marks")
    for _ in range(2):
        engine = PostgresVectors(PostgresConfig(dsn=dsn))
        assert [hit.chunk for hit in search(engine)] == [chunk]
        engine.close()
    engine = PostgresVectors(PostgresConfig(dsn=dsn))
    added = Chunk("new.pdf", 0, "three", None, 1, marks=(Mark(2, None, 2),))
    ingest(engine, [added])
    assert [hit.chunk for hit in search(engine)] == [added, chunk]
    for name in names(engine):
        engine.drop(name)
    engine.close()
    server.close()


# Servers


def test_server_by_dsn(data_dir: Path) -> None:
    server = EmbeddedServer(data_dir)
    engine = PostgresVectors(PostgresConfig(dsn=server.start()))
    ingest(engine, chunks_of(document()))
    assert names(engine) == ["c"]
    engine.drop("c")
    engine.close()
    server.close()


def test_lost_connection_is_unavailable_and_made_again(data_dir: Path) -> None:
    server = EmbeddedServer(data_dir)
    dsn = server.start()
    engine = PostgresVectors(PostgresConfig(dsn=dsn))
    ingest(engine, chunks_of(document()))
    with psycopg.connect(dsn, autocommit=True) as admin:
        others = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE pid = %s"
        admin.execute(others, [engine._connection.info.backend_pid])
    with pytest.raises(EngineUnavailable, match="PostgreSQL"):
        search(engine)
    engine.release("q")
    assert len(search(engine)) == 3
    engine.drop("c")
    engine.close()
    server.close()


def test_unreachable_server_is_unavailable() -> None:
    with pytest.raises(EngineUnavailable, match="refused"):
        PostgresVectors(PostgresConfig(dsn="postgresql://user@127.0.0.1:1/db"))


class SlowServer:
    """A server that takes longer than it is given, a number of times."""

    pgdata = "data"

    def __init__(self, num_failures: int) -> None:
        self.num_failures = num_failures

    def start(self) -> None:
        if self.num_failures:
            self.num_failures -= 1
            raise subprocess.TimeoutExpired("pg_ctl", 10)


def test_slow_start_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0)
    module._start(SlowServer(num_failures=2))  # type: ignore[arg-type]
    with pytest.raises(EngineUnavailable, match="timed out"):
        module._start(SlowServer(num_failures=3))  # type: ignore[arg-type]


def test_data_dir_that_is_a_file_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("no directory")
    with pytest.raises(ConfigError, match="data"):
        PostgresVectors(PostgresConfig(data_dir=tmp_path / "data"))


@pytest.mark.parametrize(
    "config",
    [
        PostgresConfig(),
        PostgresConfig("host=x", Path("y")),
        PostgresConfig("no dsn"),
        PostgresConfig("bad=1"),
    ],
)
def test_unusable_configuration_is_a_config_error(config: PostgresConfig) -> None:
    with pytest.raises(ConfigError):
        PostgresVectors(config)


_OTHER_PROCESS = """
import sys
from pathlib import Path
from stretto.engines.batch.postgres import PostgresConfig, PostgresVectors
engine = PostgresVectors(PostgresConfig(data_dir=Path(sys.argv[1])))
for line in sys.stdin:
    print([collection.name for collection in engine.collections()], flush=True)
engine.close()
"""


def other_process(data_dir: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _OTHER_PROCESS, str(data_dir)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert ask(process) == "[]"
    return process


def ask(process: subprocess.Popen[str]) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def test_processes_share_a_data_dir_and_the_last_one_stops_the_server(tmp_path: Path) -> None:
    other = other_process(tmp_path / "data")
    ours = PostgresVectors(PostgresConfig(data_dir=tmp_path / "data"))
    ingest(ours, chunks_of(document()))
    assert ask(other) == "['c']"
    ours.close()
    assert ask(other) == "['c']"
    again = PostgresVectors(PostgresConfig(data_dir=tmp_path / "data"))
    other.communicate()
    assert other.returncode == 0
    assert names(again) == ["c"]
    again.close()
    assert not (tmp_path / "data/postmaster.pid").exists()


def test_killed_process_does_not_keep_the_server_running(tmp_path: Path) -> None:
    other = other_process(tmp_path / "data")
    other.send_signal(signal.SIGKILL)
    other.communicate()
    ours = PostgresVectors(PostgresConfig(data_dir=tmp_path / "data"))
    assert ours.collections() == []
    ours.close()
    assert not (tmp_path / "data/postmaster.pid").exists()
