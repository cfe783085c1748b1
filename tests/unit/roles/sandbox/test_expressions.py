"""What a library may evaluate text to."""

from __future__ import annotations

import ast
import builtins
from collections import namedtuple
from dataclasses import make_dataclass

import pytest

from roles.sandbox.expressions import LAMBDIFY, SYMPY, check_expression, only_expressions

evaluate, execute = builtins.__dict__["eval"], builtins.__dict__["exec"]


@pytest.mark.parametrize(
    "text",
    [
        "1",
        "-1.5e3",
        "[1, 'a', None]",
        "{'a': (1, 2)}",
        "{1, 2}",
        "2 ** 3 // 4 % 5 << 1",
        "[[1, 0], [0, 1]]",
        "(0x3f + 2) | 1",
    ],
)
def test_only_expressions__values_are_made(text: str) -> None:
    with only_expressions():
        given = evaluate(text), ast.literal_eval("[1]")
    assert given == (evaluate(text), [1])


@pytest.mark.parametrize(
    "text",
    [
        *(
            "x",
            "[x]",
            "open('/etc/passwd')",
            "(lambda: 1)()",
            "().__class__",
            "[1][0]",
            "[i for i in (1, 2)]",
            "f'{x}'",
        ),
        *("1 if 1 else 2", "[*x]", "(y := 1)", "__import__('os')", "1 < 2", "True and x", "("),
    ],
)
def test_only_expressions__code_is_refused_before_it_runs(text: str) -> None:
    x = ["never seen"]
    for call in (
        lambda: evaluate(text, {}, {"x": x}),
        lambda: compile(text, "x", "eval"),
        lambda: compile(text, "x", "exec"),
    ):
        with only_expressions(), pytest.raises(SyntaxError):
            call()
    with only_expressions(), pytest.raises(SyntaxError):
        execute("x = 1")


def test_only_expressions__ends_with_its_block() -> None:
    with only_expressions(), pytest.raises(SyntaxError):
        evaluate("len('ab')")
    assert evaluate("len('ab')") == 2


def test_only_expressions__modules_and_classes_are_made() -> None:
    with only_expressions():
        assert make_dataclass("Point", ["x"])(3).x == 3
        assert namedtuple("pair", ("a", "b")).__name__ == "pair"


@pytest.mark.parametrize(
    "source",
    [
        "Integer (2 )*Symbol ('x' )",
        "sin (x )+E ",
        "Function ('f' )(x )",
        "Add(x, 1, evaluate=False)",
        "factorial (Integer (4 ))",
    ],
)
def test_check_expression__sympy_may_name_what_it_knows(source: str) -> None:
    check_expression(source, SYMPY)
    with pytest.raises(SyntaxError):
        check_expression(source)


@pytest.mark.parametrize(
    "source",
    [
        *("open ('x')", "Integral (x ,x )", "integrate (x ,x )", "expand (x )", "sympify ('x')", "lambdify (x ,'x')"),
        *(
            "Symbol ('x').name",
            "Symbol ('x')('y')",
            "_x",
            "Add(x, evaluate=f())",
            "Lambda (x ,x )",
            "f(x)(y)",
            "sin(*x)",
        ),
    ],
)
def test_check_expression__not_even_sympy_may_name(source: str) -> None:
    with pytest.raises(SyntaxError):
        check_expression(source, SYMPY)


def test_check_expression__numeric_routine_of_an_expression() -> None:
    check_expression("from mpmath import *", LAMBDIFY)
    check_expression("def _lambdifygenerated(x):\n    return x**5 - mpf(2)*sin(x)\n", LAMBDIFY)
    with pytest.raises(SyntaxError):
        check_expression("def _lambdifygenerated(x):\n    return open('x')\n", LAMBDIFY)


def test_sympy__evaluates_within_the_bounds() -> None:
    sympy = pytest.importorskip("sympy")
    with only_expressions():
        assert str(sympy.parse_expr("2*x + sin(y)**2 + x!")) == "2*x + sin(y)**2 + factorial(x)"
        assert str(sympy.parse_expr("1 + x", evaluate=False)) == "x + 1"
        assert len(sympy.Poly("x**5 - x + 1").nroots()) == 5
        assert sympy.solve("x**5 - x + 1", "x")[0].evalf(3) < 0
        for text in ("__import__('os')", "sympify('print(1)')", "x.__class__", "lambda: 1"):
            with pytest.raises((SyntaxError, TypeError, sympy.SympifyError)):
                sympy.parse_expr(text)
