"""Functions as Triton's interpreter wants them: what is assigned becomes a tensor.

Triton looks for the lines of each function with a tokenizer, twice, and goes through all of its
expressions, twice again. A rank rewrites every kernel of the artifacts that it opens, which took
longer than many a test runs them.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from fuscoc_runtime.kernels.handles import Change


def rewriting() -> Iterator[Change]:
    """How a function is rewritten: from one parse of its file, statement by statement."""
    from triton.runtime import interpreter

    rewrite = interpreter.FunctionRewriter.rewrite_ast
    [sample] = ast.parse("_ = _").body
    made = ast.fix_missing_locations(interpreter.FunctionRewriter.ast_transformer.visit(sample))
    change, (_, *others) = made.value.func, made.value.args

    def rewrite_ast(self: Any) -> Any:
        code = self.fn.__code__
        text = "".join(linecache.getlines(code.co_filename, self.fn.__globals__))
        # They are changed in place: each is taken once.
        found = _functions(code.co_filename, text).pop(code.co_firstlineno, None)
        if found is None or (assigned := _assigned(found)) is None:
            return rewrite(self)
        for each in assigned:
            call = ast.Call(change, [each.value, *others], [])
            each.value = ast.copy_location(call, each.value)
        self.filename = code.co_filename
        return self._compile_and_exec(ast.Module([found], []))

    yield interpreter.FunctionRewriter, "rewrite_ast", rewrite_ast


def _assigned(function: ast.FunctionDef) -> list[ast.Assign] | None:
    """The assignments, which are all that there is to change; None where comparisons are chained,
    or several targets are assigned to."""
    found, ahead = list[ast.Assign](), list[ast.AST]([function])
    while ahead:
        node = ahead.pop()
        if isinstance(node, ast.Assign):
            if len(node.targets) > 1:
                return None
            found.append(node)
        elif isinstance(node, ast.Compare) and len(node.ops) > 1:
            return None
        for value in vars(node).values():
            if type(value) is list:
                ahead += [each for each in value if isinstance(each, ast.AST)]
            elif isinstance(value, ast.expr):
                ahead.append(value)
    return found


@lru_cache(maxsize=100)
def _functions(file: str, text: str) -> dict[int, ast.FunctionDef]:
    """The functions of a module, without decorators, by the line where they begin."""
    try:
        body = ast.parse(text).body
    except SyntaxError:  # of a file that has changed
        return {}
    found = {}
    for each in body:
        if isinstance(each, ast.FunctionDef):
            found[min([each.lineno, *(above.lineno for above in each.decorator_list)])] = each
            each.decorator_list = []
    return found
