"""Asides that explain a term of the glossary, such as "query (a run)", and where they stand.

A term is explained in `docs/glossary.md` and where it is defined. An aside behind it, pasted wherever it
stands, makes sentences longer and says nothing new.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tools.house import statements

ASIDES = {
    r"quer(?:y|ies)": r"(?:the |one )?runs?(?: of (?:an app|apps|the app|it))?",
    r"(?:node|primitive)s?(?:'s)?": (
        r"(?:an? |one )?steps?(?:'s)?(?: (?:of|that|which|applied|replaced) [^()]+)?"
    ),
    r"(?:entry|entries)": r"(?:the |one step's )?(?:queued )?work(?: of (?:one step|steps))?",
    r"requests?": r"one step's work[^()]*",
    r"polic(?:y|ies)": r"the rules? [^()]+",
    r"orders?": r"(?:the )?rules? [^()]+",
    r"ops?": r"kinds? of (?:step|work)s?[^()]*",
    r"ports?": r"(?:a |an |named |declared )?(?:named )?(?:in|out)puts?",
    r"replicas?": (
        r"(?:a further |running )?cop(?:y|ies)(?: of [^()]+)?|ways to run (?:it|them)|declaration of [^()]+"
    ),
    r"instances?": r"running cop(?:y|ies)[^()]*|one that may be down",
    r"spaces?": r"(?:a )?tokenizer and (?:a )?block length",
    r"(?:nodes?|child|children)": r"(?:a )?runs? of (?:cached )?blocks[^()]*",
    r"components?": r"parts?(?: of (?:an|the) app)?",
    r"decodes?(?:'s)?": r"LLM generation(?:'s)?",
    r"(?:suspects?|ones|instances)": r"perhaps down",
    r"steps": r"engine iterations?|steps that become graphs",
    r"commands?": r"such as to run a batch",
    r"events?": r"what has happened(?: to an instance|, as the schedulers are told)?",
    r"vocabular(?:y|ies)": r"(?:the )?tables? of known names",
    r"templates?": r"(?:a )?kinds? of prompts?|an app",
    r"graphs?": r"an app",
    r"presets?": r"known costs of one kind of machine",
    r"contexts?": r"(?:a )?lists? of tokens",
    r"drivers?": r"the runtime,? or the simulator",
    r"tenants?": r"owners?",
    r"users?": r"readers?",
    r"jumps?": r"steps simulated at once",
    r"pass(?:es)?": r"rewriting functions?|functions that rewrite [^()]+|graph rewritings?",
    r"slots?": r"the right to run a query",
    r"ranks?": r"sort keys? in [^()]+",
    r"deployments?": r"engines with their replicas",
    r"effects?": r"(?:a )?steps? that changes? [^()]+",
    r"keys?": r"(?:the |its )?block hashes|the hashes of their blocks",
    r"draining": r"getting no more work",
}
"""Patterns of terms, each with those of the asides that say what the glossary says."""


def _pattern(term: str, aside: str) -> re.Pattern[str]:
    """Return the pattern of an aside behind its term; either may go on in the next line of a comment."""
    return re.compile(rf"\b(?:{term})`?(?P<aside>[\s#]+\((?:{_broken(aside)})\))", re.IGNORECASE)


def _broken(aside: str) -> str:
    return aside.replace(" ", r"\s+(?:# )?")


_PATTERNS = [_pattern(term, aside) for term, aside in ASIDES.items()]
_ASIDE = re.compile(rf"(?<=[\s#])\((?:{'|'.join(map(_broken, ASIDES.values()))})\)", re.IGNORECASE)


def asides(text: str) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of the asides of a text, with the space before each."""
    for pattern in _PATTERNS:
        for found in pattern.finditer(text):
            yield found.span("aside")


def documentation(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of the docstrings of a module, its classes, functions and attributes."""
    for node in statements(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in node.body:
                match statement:
                    case ast.Expr(ast.Constant(str(text))):
                        yield statement.lineno, text


def prose(source: str) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of the docstrings of a module, and of its comments as far as they are one block."""
    yield from documentation(ast.parse(source))
    block: list[str] = []
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] != last + 1 and block:
                yield last - len(block) + 1, "\n".join(block)
                block = []
            block.append(token.string)
            last = token.start[0]
    if block:
        yield last - len(block) + 1, "\n".join(block)


def pasted(path: Path) -> list[str]:
    """Return the asides in the prose of a module or of a page, each with its line."""
    source = path.read_text("utf-8")
    if not _ASIDE.search(source):
        return []  # most modules: reading their tokens takes a hundred times longer
    texts = prose(source) if path.suffix == ".py" else [(1, source)]
    return [
        f"{line + text.count(chr(10), 0, end)}: {' '.join(text[start:end].split())}"
        for line, text in texts
        for start, end in asides(text)
    ]
