"""Files of users run once in a process, each as a module of its own."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

from stretto.apps.template_file import template_in_file
from stretto.model.errors import ConfigError, TemplateError
from stretto.model.user_files import maker_in_file, run_file
from stretto.model.wording import why_unreadable

CODE = """
import sys

sys.ran_for_this_test.append({name!r})

class Made:
    name = {name!r}
"""


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that have run, in order."""
    names: list[str] = []
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "ran_for_this_test", names, raising=False)
    return names


def written(path: Path, code: str = "") -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(code or CODE.format(name=path.parent.name))
    return path


def test_files_of_one_name_in_two_folders_are_two_modules(ran: list[str], tmp_path: Path) -> None:
    files = [written(tmp_path / folder / "own.py") for folder in ("one", "two")]
    made: list[Any] = [run_file(file, "an app").Made for file in files]
    assert [each.name for each in made] == ["one", "two"]
    for each in made:
        assert sys.modules[each.__module__].Made is each
        assert type(pickle.loads(pickle.dumps(each()))) is each


def test_a_file_runs_once_whatever_names_it(
    ran: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path / "one" / "own.py")
    (tmp_path / "link.py").symlink_to(file)
    monkeypatch.chdir(tmp_path)
    names = (file, Path("one/own.py"), Path("one/../one/own.py"), Path("link.py"))
    modules = {id(run_file(name, "an app")) for name in names}
    assert len(modules) == 1
    made = maker_in_file(f"{file}:Made", "placement")
    assert made is maker_in_file("one/own.py:Made", "order")
    assert made is run_file(file, "an app").Made
    assert ran == ["one"]


def test_what_a_file_has_made_stays_of_its_own_classes_when_it_changes(
    ran: list[str], tmp_path: Path
) -> None:
    file = written(tmp_path / "one" / "own.py")
    made = maker_in_file(f"{file}:Made", "placement")()
    written(file, CODE.format(name="changed"))
    assert run_file(file, "an app").Made.name == "changed"
    assert maker_in_file(f"{file}:Made", "placement")().name == "changed"
    assert type(pickle.loads(pickle.dumps(made))) is type(made)
    assert made.name == "one"
    assert ran == ["one", "changed"]


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("1 / 0", ConfigError),
        ("raise SystemExit(3)", ConfigError),
        ("raise KeyboardInterrupt", KeyboardInterrupt),
        ("from stretto.model.errors import TemplateError\nraise TemplateError('no')", TemplateError),
    ],
)
def test_a_file_that_has_raised_leaves_nothing_and_runs_again(
    code: str, error: type[BaseException], ran: list[str], tmp_path: Path
) -> None:
    file, before = written(tmp_path / "one" / "own.py", code), set(sys.modules)
    with pytest.raises(error):
        run_file(file, "an app")
    assert not {name for name in set(sys.modules) - before if "own" in name}
    written(file, CODE.format(name="mended"))
    assert run_file(file, "an app").Made.name == "mended"


def test_names_that_are_no_identifiers_and_what_is_no_file(ran: list[str], tmp_path: Path) -> None:
    file = written(tmp_path / "one" / "my own.v2.py")
    assert run_file(file, "an app").__name__.isidentifier()
    for name in ("none.py", "a\0b.py"):
        with pytest.raises(ConfigError, match="an app: there is no file"):
            run_file(tmp_path / name, "an app")


def test_an_app_that_a_file_has_not_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    file = written(tmp_path / "apps" / "own.py", "notes = 3\n")
    for where, message in (
        (f"{file}:note", "there is no note in .*own.py; did you mean notes?"),
        (f"{file}:notes", "notes must be a Template or a function"),
        (f"{tmp_path}:notes", "is a folder"),
        (f"{tmp_path}/none.py:notes", "there is no file"),
    ):
        with pytest.raises(ConfigError, match=f"^--app {where}: .*{message}"):
            template_in_file(where)


def test_why_a_file_cannot_be_read_is_told_without_its_path_and_in_words(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes("Köln".encode("latin-1"))
    reasons = {}
    for name in (".", "none", "latin"):
        try:
            (tmp_path / name).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reasons[name] = why_unreadable(error)
    assert reasons == {
        ".": "Is a directory",
        "none": "No such file or directory",
        "latin": "byte 0xf6 is not UTF-8",
    }


def test_what_a_file_has_not_is_told_by_what_its_author_wrote(tmp_path: Path) -> None:
    file = written(tmp_path / "own.py", "made = 1\n")
    with pytest.raises(ConfigError, match=r"nothing of the file is named; write .*own\.py:NAME$"):
        template_in_file(f"{file}:")
    with pytest.raises(ConfigError, match=r"there is no __nam in .*own\.py$"):
        template_in_file(f"{file}:__nam")
