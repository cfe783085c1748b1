"""Text that is judged must not become code: what it may become where a library evaluates it. Stdlib only.

Libraries pass answers to `eval`, or to sympy's `parse_expr`, which uses it. While `only_expressions` is active, Python
calls a hook here before it compiles any text. Anything beyond numbers, texts, lists and arithmetic - from sympy also
its symbols and elementary functions - is refused with SyntaxError before any of it runs. No name reaches beyond that:
neither `open`, nor the local variable in which a library keeps the right answer.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

LITERALS: tuple[type[ast.AST], ...] = (
    *(ast.Module, ast.Expression, ast.Expr, ast.Load),
    *(ast.Constant, ast.List, ast.Tuple, ast.Set, ast.Dict),
    *(ast.UnaryOp, ast.unaryop, ast.BinOp, ast.operator),
)
ROUTINES = (ast.FunctionDef, ast.arguments, ast.arg, ast.Return, ast.Import, ast.ImportFrom, ast.alias)
SYMPY, LAMBDIFY = "sympy.parsing.sympy_parser", "sympy.utilities.lambdify"
"""The module that parses expressions, and the one that makes numeric routines of them."""
SYMPY_NAMESPACE = b"from sympy import *"
"""What `parse_expr` runs for itself on each call."""
FUNCTIONS = frozenset(
    """
    Integer Float Rational Symbol Function Add Mul Pow Abs Max Min Mod abs max min sqrt cbrt root real_root exp log ln
    sin cos tan cot sec csc asin acos atan acot asec acsc atan2 sinc sinh cosh tanh coth sech csch asinh acosh atanh acoth
    asech acsch factorial factorial2 binomial gamma loggamma floor ceiling sign re im arg conjugate erf erfc erfi Ei li Si
    Ci Shi Chi fresnels fresnelc LambertW Heaviside mpf mpc mpi
    """.split()
)
"""sympy's names that compute a value, except those that would do the task's own work: no integrals, no expansion."""
MAKERS = frozenset(
    {
        *("importlib._bootstrap", "importlib._bootstrap_external"),
        *("_frozen_importlib", "_frozen_importlib_external"),
        *("dataclasses", "collections", "typing", "attr._make", "sympy.polys.monomials"),
    }
)
"""Modules that compile code not derived from the text: modules, classes, and code for a given number of variables."""

_is_held = _is_hooked = False


@contextmanager
def only_expressions() -> Iterator[None]:
    """Within the block, text can become values in this process, but never code."""
    global _is_held, _is_hooked
    if not _is_hooked:
        sys.addaudithook(_look)  # it cannot be removed
        _is_hooked = True
    _is_held = True
    try:
        yield
    finally:
        _is_held = False


def check_expression(source: str | bytes | ast.AST, caller: str = "") -> None:
    """Raises SyntaxError when the source is more than an expression of values. With `caller`, one of sympy's modules,
    it may use the names that sympy knows."""
    tree = source if isinstance(source, ast.AST) else compile(source, "expression", "exec", ast.PyCF_ONLY_AST)
    symbolic = caller in (SYMPY, LAMBDIFY)
    allowed = (*LITERALS, *ROUTINES) if caller == LAMBDIFY else LITERALS
    for node in ast.walk(tree):
        if not (isinstance(node, allowed) or (symbolic and _is_symbolic(node))):
            raise SyntaxError(f"text that is judged is no program: {type(node).__name__}")


def _is_symbolic(node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        return not node.id.startswith("_")
    if isinstance(node, ast.keyword):
        return node.arg == "evaluate" and isinstance(node.value, ast.Constant)
    return isinstance(node, ast.Call) and _is_function(node.func)


def _is_function(called: ast.expr) -> bool:
    if isinstance(called, ast.Call):  # Function('f')(x)
        return isinstance(called.func, ast.Name) and called.func.id == "Function"
    return isinstance(called, ast.Name) and called.id in FUNCTIONS


def _look(event: str, arguments: tuple[object, ...]) -> None:
    if event != "compile" or not _is_held:
        return
    caller = _module(sys._getframe(1))
    source = arguments[0]
    if caller == __name__ or caller in MAKERS or (caller == SYMPY and source == SYMPY_NAMESPACE):
        return
    if not isinstance(source, str | bytes | ast.AST):
        raise SyntaxError("text that is judged is no program")
    check_expression(source, caller)


def _module(frame: FrameType | None) -> str:
    """The module that asks for a compilation, directly or through `ast`."""
    while frame is not None and frame.f_globals.get("__name__") == "ast":
        frame = frame.f_back
    return "" if frame is None else str(frame.f_globals.get("__name__"))
