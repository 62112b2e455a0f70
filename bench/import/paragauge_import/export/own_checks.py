"""Conditions that only check what a user's program is given, of which an export doesn't know the values: that they are met is taken for
granted, as a run in training does.

    assert not torch.isnan(x).any()             # an assertion
    if (ids >= self.size).any(): raise …        # what ends in an error, or only speaks of it
    if torch.isinf(scores).any(): scores = …    # numbers that aren't finite: there are none
"""

import ast
import dis
import linecache
import sys
from functools import lru_cache
from pathlib import Path

from paragauge_import.refusal import NOT_THE_USERS

FINITE = {"isnan": False, "isinf": False, "isfinite": True}  # what a condition says of such a call where all is well
SPEAKING = {"print", "warn", "warning", "debug", "info", "error", "critical", "exception", "log"}


@lru_cache(maxsize=None)
def conditions(path: str) -> list:
    """Of a file all assertions and ifs."""
    try:
        return [n for n in ast.walk(ast.parse("".join(linecache.getlines(path)))) if isinstance(n, ast.Assert | ast.If)]
    except SyntaxError:
        return []


def touches(node, begin, end) -> bool:
    return (node.lineno, node.col_offset) < end and begin < (node.end_lineno, node.end_col_offset)


def name_of(call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def of_finite(test) -> bool | None:
    """What a condition is where all numbers are finite; None: it asks for something else, too."""
    calls = [name_of(n) for n in ast.walk(test) if isinstance(n, ast.Call)]
    answers = {FINITE[name] for name in calls if name in FINITE}
    others = set(calls) - set(FINITE) - {"any", "all", "item", "sum"}
    return answers.pop() if len(answers) == 1 and not others else None


def leaves(test, wanted: bool) -> list:
    """The operands of and, or, not, each with what it should be."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return leaves(test.operand, not wanted)
    if isinstance(test, ast.BoolOp):
        return [leaf for value in test.values for leaf in leaves(value, wanted)]
    return [(test, wanted)]


def complains(body) -> bool:
    return isinstance(body[-1], ast.Raise) or all(
        isinstance(s, ast.Expr) and isinstance(s.value, ast.Call) and name_of(s.value) in SPEAKING for s in body)


def all_leaves(node) -> list:
    """The operands of a check's condition, each with what it is where all is well."""
    if isinstance(node, ast.Assert):
        return leaves(node.test, True)
    if complains(node.body):
        return leaves(node.test, False)
    return [(leaf, finite) for leaf, _ in leaves(node.test, True) if (finite := of_finite(leaf)) is not None]


def users_frame():
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(NOT_THE_USERS):
        frame = frame.f_back
    return frame


def operand(frame) -> tuple | None:
    """Where the source says what the frame has just computed, which it now makes a bool of: begin and end, (line, column) each."""
    at = frame.f_lasti // 2 - 1
    while at > 0 and frame.f_code.co_code[2 * at] == dis.opmap.get("CACHE"):
        at -= 1
    if not hasattr(frame.f_code, "co_positions"):  # Python 3.10 knows the line only
        return (frame.f_lineno, 0), (frame.f_lineno + 1, 0)
    line, last_line, column, last_column = list(frame.f_code.co_positions())[at]
    return None if None in (line, last_line, column, last_column) else ((line, column), (last_line, last_column))


def answer() -> bool | None:
    """Of the condition that the user's program asks for: what it is where all is well. None: it is no check."""
    frame = users_frame()
    here = operand(frame) if frame is not None else None
    if here is None:
        return None
    found = {value for node in conditions(frame.f_code.co_filename) if touches(node.test, *here)
             for leaf, value in all_leaves(node) if touches(leaf, *here)}
    return found.pop() if len(found) == 1 else None


def note() -> str:
    frame = users_frame()
    path, line = (frame.f_code.co_filename, frame.f_lineno) if frame else ("", 0)
    return f"a check of values is left out, as if it had passed: {Path(path).name}:{line}: {linecache.getline(path, line).strip()}"
