"""Ready-made tool of an agent: a calculator."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping

from stretto.model.tools import Tool

_BINARY: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_MAX_CHARS = 200
_MAX_POWER = 64
_MAX_NUMBER = 1e100


def calculate(expression: str) -> str:
    """Return the value of an expression of numbers, + - * / // % ** (or ^) and parentheses.

    Raises:
        ValueError: it is something else, too long, or a number is too large.
        ZeroDivisionError: it divides by zero.
    """
    text = expression.replace(",", "").replace("^", "**").strip()
    if len(text) > _MAX_CHARS:
        raise ValueError(f"the expression has {len(text)} characters; at most {_MAX_CHARS} are allowed")
    try:
        parsed = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{expression!r} is no expression of numbers") from error
    value = _value(parsed)
    return str(int(value)) if value == int(value) else f"{value:.10g}"


def _value(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            value: float = number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            value = -_value(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            value = _value(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            a, b = _value(left), _value(right)
            if isinstance(op, ast.Pow) and abs(b) > _MAX_POWER:
                raise ValueError(f"the power {b:g} is beyond {_MAX_POWER}")
            value = _BINARY[type(op)](a, b)
        case _:
            raise ValueError(f"{ast.unparse(node)!r} is no number")
    if isinstance(value, complex) or not abs(value) <= _MAX_NUMBER:
        raise ValueError(f"a number is beyond {_MAX_NUMBER:g} or not real")
    return value


CALCULATOR = Tool("calculate", "the value of an expression of numbers, like (17 + 4) * 3", calculate)
"""The calculator as a tool."""
