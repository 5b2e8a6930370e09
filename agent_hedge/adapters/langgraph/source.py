"""The syntax tree of a function that is already running: found by file and line, and proven to be the same code."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType, FunctionType

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def definitions(function: FunctionType) -> list[Definition]:
    """Return the definitions this function may come from; empty when its source is gone or has changed.

    More than one only for lambdas that share a line and look alike: all of them are to be read.
    """
    code = function.__code__
    text = "".join(linecache.getlines(code.co_filename, function.__globals__))
    found = [node for node in _functions(text).get(code.co_firstlineno, ()) if _is_from(code, node)]
    return found if found and (len(found) == 1 or code.co_name == "<lambda>") else []


@lru_cache(maxsize=256)
def _functions(text: str) -> dict[int, tuple[Definition, ...]]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return {}
    by_line: dict[int, tuple[Definition, ...]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
            line = min((each.lineno for each in decorators), default=node.lineno)
            by_line[line] = (*by_line.get(line, ()), node)
    return by_line


def _is_from(code: CodeType, node: Definition) -> bool:
    """Whether every name the compiled code uses stands in the tree: a file edited since the import does not pass."""
    name = "<lambda>" if isinstance(node, ast.Lambda) else node.name
    parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    args = node.args
    if name != code.co_name or parameters != tuple(
        each.arg for each in (*args.posonlyargs, *args.args, *args.kwonlyargs)
    ):
        return False
    written = set(_names(node))
    return all(used in written or used.startswith("__") or _unmangled(used) in written for used in names_of(code))


def names_of(code: CodeType) -> Iterator[str]:
    """Yield the names that a function and the functions inside it look up by name."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_of(constant)


def _unmangled(name: str) -> str:
    """Undo the mangling of a private name in a class body: ``_Service__tool`` was written ``__tool``."""
    return name[name.find("__") :] if name.startswith("_") and "__" in name else name


def _names(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            yield each.id
        elif isinstance(each, ast.Attribute):
            yield each.attr
        elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield each.name
        elif isinstance(each, ast.alias):
            yield each.name
            yield from each.name.split(".")
            yield each.asname or ""
        elif isinstance(each, ast.ImportFrom):
            yield each.module or ""
        elif isinstance(each, ast.MatchClass):
            yield from each.kwd_attrs
        elif isinstance(each, ast.keyword):
            yield each.arg or ""
