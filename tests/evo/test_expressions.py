from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evo.errors import TemplateError
from evo.expressions import compile_expression, evaluate, names
from evo.intervals import may_hold
from evo.job import DeviceInfo

SCOPE = {"wg": 64, "vec": 4, "rows": 1000, "mode": "fast"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("wg * vec <= 256", True),
        ("wg * vec <= 255", False),
        ("ceil_div(rows, wg)", 16),
        ("round_up(rows, wg)", 1024),
        ("round_up(1024, wg)", 1024),
        ("log2(wg)", 6),
        ("log2(1000)", 9),
        ("min(wg, vec, 3)", 3),
        ("max(wg, vec)", 64),
        ("-wg // 3", -22),
        ("rows % 7", 6),
        ("2 ** 10", 1024),
        ("1 < vec < 8", True),
        ("1 < vec < 4", False),
        ("mode == 'fast' and not vec > 4", True),
        ("mode in ['slow', 'fast']", True),
        ("mode not in ['slow']", True),
        ("wg if vec > 4 else rows", 1000),
        ("vec == 4 or 1 // 0 > 0", True),
        ("1.5 * vec", 6.0),
        (7, 7),
        (True, True),
    ],
)
def test_evaluates(text, expected):
    result = evaluate(text, SCOPE)
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("''.__class__", "Getattr is not allowed"),
        ("wg.real", "Getattr is not allowed"),
        ("wg['real']", "Getitem is not allowed"),
        ("mode | upper", "Filter is not allowed"),
        ("wg is defined", "Test is not allowed"),
        ("range(3)", "range cannot be called"),
        ("max.__call__(1)", "cannot be called"),
        ("[1, 2]", "List is not allowed"),
        ("{'a': 1}", "Dict is not allowed"),
        ("mode ~ mode", "Concat is not allowed"),
        ("wg / 2", "Div is not allowed"),
        ("none", "Const is not allowed"),
        ("min", "is a function"),
        ("min()", "argument"),
        ("ceil_div(1)", "takes 2 argument"),
        ("max(1, default=2)", "positional"),
        ("max(*rows)", "positional"),
        ("device", "needs a field"),
        ("device.secret", "unknown device field"),
        ("wg in rows", "literal list"),
        ("wg if vec", "needs an else"),
        ("9 ** 9 ** 9", "2**100"),
        ("2 ** -1", "exponent"),
        ("1" + "0" * 40, "2**100"),
        ("mode * 1000", "takes numbers"),
        ("'%999999999d' % wg", "takes numbers"),
        ("rows // 0", "division by zero"),
        ("rows % 0", "division by zero"),
        ("1e308 * 10.0", "2**100"),
        ("wg < mode", "not supported"),
        ("wgg + 1", "did you mean 'wg'"),
        ("log2(0)", "positive"),
        ("ceil_div(1, 0)", "positive divisor"),
        ("round_up(1.5, 2)", "integers"),
        ("wg +", "in expression"),
        ("(wg", "in expression"),
        ("wg }", "unexpected"),
        ("wg wg", "unexpected"),
        ("", "empty"),
        ("wg + " * 400 + "1", "longer than"),
        ("(" * 300 + "1" + ")" * 300, "nested too deeply"),
        ("-" * 300 + "1", "nested too deeply"),
        ("import os", "unexpected"),
    ],
)
def test_refuses_with_the_text_and_the_reason_on_one_line(text, reason):
    with pytest.raises(TemplateError) as caught:
        evaluate(text, SCOPE)
    message = str(caught.value)
    assert message.startswith("in expression ")
    assert reason in message
    assert "\n" not in message


def test_device_fields_come_from_the_device():
    device = DeviceInfo(backend="opencl", name="x", kind="cpu", max_work_group_size=128)
    text = "wg <= device.max_work_group_size and device.kind == 'cpu'"
    assert evaluate(text, {**SCOPE, "device": device}) is True
    assert names(text) == {"wg", "device"}


def test_names_leave_helpers_out():
    assert names("ceil_div(rows, wg) + max(vec, 2)") == {"rows", "wg", "vec"}


def test_integer_checks_kind_and_minimum():
    assert compile_expression("wg").integer(SCOPE, minimum=1) == 64
    for text, reason in (("wg > 1", "not an integer"), ("1.5", "not an integer"), ("0", "below")):
        with pytest.raises(TemplateError, match=reason):
            compile_expression(text).integer(SCOPE, minimum=1)


def test_compiled_once():
    assert compile_expression("wg + 1") is compile_expression(" wg + 1 ")


# --- Against Python itself, on the grammar both share -------------------------------------------

arithmetic_texts = st.recursive(
    st.sampled_from(["a", "b", "c", "0", "1", "3", "17"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%"]), inner).map(
            lambda t: f"({t[0]} {t[1]} {t[2]})"
        ),
        st.tuples(st.sampled_from(["min", "max", "ceil_div", "round_up"]), inner, inner).map(
            lambda t: f"{t[0]}({t[1]}, {t[2]})"
        ),
        st.tuples(inner, inner, inner).map(lambda t: f"({t[0]} if {t[1]} > 2 else {t[2]})"),
    ),
    max_leaves=6,
)
comparisons = st.tuples(
    arithmetic_texts, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), arithmetic_texts
).map(" ".join)
conditions = st.one_of(
    comparisons,
    comparisons.map(lambda text: f"not ({text})"),
    st.tuples(comparisons, st.sampled_from(["and", "or"]), comparisons).map(" ".join),
)
sizes = st.integers(-20, 40)


def python_value(text: str, values: dict[str, int]) -> object:
    functions = {
        "min": min,
        "max": max,
        "ceil_div": lambda a, b: -(-a // b) if b > 0 else 1 // 0,
        "round_up": lambda a, b: -(-a // b) * b if b > 0 else 1 // 0,
    }
    return eval(text, {"__builtins__": {}, **functions}, dict(values))  # text made above


@given(conditions, sizes, sizes, sizes)
def test_agrees_with_python(text, a, b, c):
    values = {"a": a, "b": b, "c": c}
    try:
        expected = python_value(text, values)
    except ZeroDivisionError:
        with pytest.raises(TemplateError):
            evaluate(text, values)
        return
    assert evaluate(text, values) == expected


@given(conditions, st.lists(sizes, min_size=2, max_size=4), st.lists(sizes, min_size=1), sizes)
def test_ranges_never_call_a_satisfiable_condition_impossible(text, many_a, many_b, c):
    expression = compile_expression(text)
    ranges = {"a": (min(many_a), max(many_a)), "b": (min(many_b), max(many_b))}

    def holds(a: int, b: int) -> bool:
        try:
            return bool(expression({"a": a, "b": b, "c": c}))
        except TemplateError:
            return False

    if any(holds(a, b) for a in many_a for b in many_b):
        assert may_hold(expression.tree, ranges, {"c": c})


@pytest.mark.parametrize(
    "text",
    ["a * b * 4 <= 64", "a + b < 10", "not a > 8", "a <= 4 or b <= 4", "max(a, b) < 9",
     "ceil_div(a, 2) < 4", "log2(a) < 3", "a ** 2 < 50", "a == 4", "(a if c > 0 else 1) < 9"],
)  # fmt: skip
def test_ranges_do_refute(text):
    tree = compile_expression(text).tree
    assert not may_hold(tree, {"a": (9, 20), "b": (10, 20)}, {"c": 1})
