"""Counts what the structure of the package is judged by: `python -m tools.house [--question] [--json FILE]`.

Counted are lines, long files, long functions, large classes, public names that several modules define,
circles of imports, and the modules and files that a command and a question run through.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = "stretto"
MOST_LINES, MOST_FUNCTION_LINES, MOST_METHODS, FEWEST_LINES = 300, 60, 15, 30
LARGE_AS_THEY_ARE: Mapping[str, Sequence[str]] = {
    "users call it; each method is documented": ("Client", "SemanticVariable", "Runtime"),
    "asyncio, a parser, or what brings an answer calls it back": (
        *("ClientConnection", "RequestReader", "RoutedExchange", "TakenAnswer"),
    ),
    "queries and faults plan events by it, and it carries out each action": ("VirtualDriver",),
    "routes read and answer by it": ("HttpRequest",),
    "one method for each event of a state machine": (
        *("System", "BatchScheduler", "LLMScheduler", "SessionMachine", "GraphScheduler"),
        *("Fleet", "OpenBatches", "RouterState", "RoomGate", "RoomAtWorkers", "ProgramAccount", "Workers"),
        *("EngineQueue", "Room"),
    ),
    "the contract of an instance, on the path of each step": (
        "LocalScheduler",
        "PrefixCache",
        "LLMInstance",
        "TransformerLLM",
    ),
    "what a placement policy may ask of instances": ("InstanceTable",),
}
"""Classes of many methods that would read worse in parts, by the reason."""
_HELP = f"import sys, {PACKAGE}.cli.main as m\ntry: m.main()\nexcept SystemExit: pass\n"
_LOADED = f"print(sum(n == {PACKAGE!r} or n.startswith('{PACKAGE}.') for n in sys.modules), file=sys.stderr)"
_QUESTION = "What is the limit on the length of a line?"
_FOLLOWED = f"""
import runpy, sys, threading
files = set()
def follow(frame, event, arg):
    code = frame.f_code
    # Bodies of modules and classes, and the loops in them, run when a file is imported; only functions count.
    caller = frame.f_back.f_code if code.co_name[0] == "<" and frame.f_back else code
    if event == "call" and code.co_flags & caller.co_flags & 2 and "/{PACKAGE}/" in code.co_filename:
        files.add(code.co_filename)
threading.setprofile(follow)
sys.setprofile(follow)
import {PACKAGE}.cli.main as m
try: m.main()
except SystemExit: pass
sys.setprofile(None)
print(len(files), file=sys.stderr)
"""


@dataclass(frozen=True, slots=True)
class Count:
    """Figures of the package, each a number of things.

    Attributes:
        lines: lines of Python by top-level package.
        circles: groups of modules, or of folders, that import each other in a circle.
        files_of_one_user: files under 30 lines that one other module alone imports.
    """

    lines: Mapping[str, int]
    files: int
    long_files: Sequence[str]
    long_functions: Sequence[str]
    large_classes: Sequence[str]
    names_defined_twice: Mapping[str, Sequence[str]]
    circles: Sequence[Sequence[str]]
    files_of_one_user: Sequence[str]
    modules_of_help: int
    files_of_a_question: int | None = None


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, and write all that was found with `--json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--question", action="store_true", help="run a question too, to count its files")
    parser.add_argument("--json", type=Path, help="write names behind the numbers to this file")
    options = parser.parse_args(arguments)
    count = count_package(ROOT, with_question=options.question)
    print(as_table(count))
    if options.json:
        options.json.write_text(json.dumps(asdict(count), indent=1), "utf-8")


def count_package(root: Path, *, with_question: bool = False) -> Count:
    """Count the package below `root`, a clone."""
    sources = {_module(root, path): path for path in sorted((root / PACKAGE).rglob("*.py"))}
    texts = {name: path.read_text("utf-8") for name, path in sources.items()}
    trees = {name: ast.parse(text) for name, text in texts.items()}
    num_lines = {name: text.count("\n") for name, text in texts.items()}
    edges = imports(trees)
    users = Counter(target for targets in edges.values() for target in targets)
    by_package: Counter[str] = Counter()
    for name, lines in num_lines.items():
        by_package[name.split(".")[1] if "." in name else "__init__"] += lines
    return Count(
        dict(by_package.most_common()),
        len(sources),
        [f"{name} {lines}" for name, lines in num_lines.items() if lines > MOST_LINES],
        [one for name, tree in trees.items() for one in _long_functions(name, tree)],
        [one for name, tree in trees.items() for one in _large_classes(name, tree)],
        _defined_twice(trees),
        [*circles(edges), *circles(folder_edges(edges))],
        [
            n
            for n, lines in num_lines.items()
            if lines < FEWEST_LINES and users[n] == 1 and _is_file(sources[n])
        ],
        _modules_of_help(root),
        _files_of_a_question(root) if with_question else None,
    )


def as_table(count: Count) -> str:
    """Return the figures as a Markdown table, with the packages below it."""
    rows = [
        ("lines", sum(count.lines.values())),
        ("files", count.files),
        (f"files over {MOST_LINES} lines", len(count.long_files)),
        (f"functions over {MOST_FUNCTION_LINES} lines", len(count.long_functions)),
        (f"classes over {MOST_METHODS} methods", len(count.large_classes)),
        ("public names defined in several modules", len(count.names_defined_twice)),
        ("circles of imports, of files and of folders", len(count.circles)),
        (f"files under {FEWEST_LINES} lines with one user", len(count.files_of_one_user)),
        (f"modules that `{PACKAGE} ask --help` imports", count.modules_of_help),
        ("files that one question runs through", count.files_of_a_question or "not counted"),
    ]
    table = ["| figure | number |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]
    packages = ", ".join(f"{name} {lines:,}" for name, lines in count.lines.items())
    large = {one.split()[0].rpartition(".")[2] for one in count.large_classes}
    kept = [
        f"- {why}: {', '.join(name for name in names if name in large)}"
        for why, names in LARGE_AS_THEY_ARE.items()
    ]
    others = sorted(large.difference(*LARGE_AS_THEY_ARE.values()))
    return "\n".join(
        [
            *table,
            "",
            f"Lines by package: {packages}",
            "",
            f"Classes over {MOST_METHODS} methods that stay as they are:",
            *kept,
            "",
            f"Others: {', '.join(others)}",
        ]
    )


def imports(trees: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """Return the modules of the package that each module imports, wherever the import stands."""
    edges: dict[str, set[str]] = {name: set() for name in trees}
    for name, tree in trees.items():
        for node in statements(tree):
            edges[name] |= {target for target in _imported(node, trees) if target != name}
    return edges


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all statements in it; what is in expressions takes ten times longer to go through."""
    left = [tree]
    while left:
        node = left.pop()
        yield node
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            found = getattr(node, part, None)
            if isinstance(found, list):  # the body of a lambda or of a conditional expression is none
                left += found


def folder_edges(edges: Mapping[str, Iterable[str]]) -> dict[str, set[str]]:
    """Return the imports between siblings of each folder: its files and its folders, each a whole."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, targets in edges.items():
        for target in targets:
            mine, other = name.split("."), target.split(".")
            depth = next((i for i, (a, b) in enumerate(zip(mine, other, strict=False)) if a != b), None)
            if depth is not None and depth + 1 < max(len(mine), len(other)):
                found[".".join(mine[: depth + 1])].add(".".join(other[: depth + 1]))
    return dict(found)


def circles(edges: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return the strongly connected groups of more than one node. Source: Tarjan 1972."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        number[node] = low[node] = len(number)
        stack.append(node)
        for target in sorted(edges.get(node, ())):
            if target not in number:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], number[target])
        if low[node] == number[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1:
                found.append(sorted(group))

    sys.setrecursionlimit(10_000)
    for node in sorted(edges):
        if node not in number:
            visit(node)
    return found


def _module(root: Path, path: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def _is_file(path: Path) -> bool:
    return path.name != "__init__.py"


def _imported(node: ast.AST, known: Mapping[str, object]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in known)
    elif isinstance(node, ast.ImportFrom) and node.module:
        for alias in node.names:
            full = f"{node.module}.{alias.name}"
            if full in known:
                yield full
            elif node.module in known:
                yield node.module


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in statements(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def _long_functions(module: str, tree: ast.Module) -> Iterator[str]:
    for node in _functions(tree):
        lines = (node.end_lineno or 0) - node.lineno + 1
        if lines > MOST_FUNCTION_LINES:
            yield f"{module}.{node.name} {lines}"


def _large_classes(module: str, tree: ast.Module) -> Iterator[str]:
    for node in statements(tree):
        if isinstance(node, ast.ClassDef):
            methods = sum(isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) for item in node.body)
            if methods > MOST_METHODS:
                yield f"{module}.{node.name} {methods}"


def _defined_twice(trees: Mapping[str, ast.Module]) -> dict[str, list[str]]:
    """Return public classes and functions at the top of several modules, and these modules."""
    places: dict[str, list[str]] = defaultdict(list)
    for module, tree in trees.items():
        defined = [
            n for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        for name in {node.name for node in defined if not node.name.startswith("_")}:
            places[name].append(module)
    return {name: modules for name, modules in sorted(places.items()) if len(modules) > 1}


def _run(root: Path, script: str, arguments: Sequence[str]) -> int:
    """Return the number that a script prints last on stderr."""
    command = [sys.executable, "-c", script, *arguments]
    ended = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    return int(ended.stderr.split()[-1])


def _modules_of_help(root: Path) -> int:
    return _run(root, f"{_HELP}{_LOADED}", ["ask", "--help"])


def _files_of_a_question(root: Path) -> int:
    return _run(root, _FOLLOWED, ["ask", "--docs", "examples/documents", _QUESTION])


if __name__ == "__main__":
    main()
