from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evo.errors import TemplateError
from evo.job import Launch, Program, Scratch
from evo.render import build_program, normalise_source, source_hash
from evo.serial import from_json, to_json
from evo.task import load_task
from evo.template import load_templates, parse_template
from tests.evo.taskfolder import DEVICE, TEMPLATE, write_task

PARAMS = {"wg": 32, "per": 2, "fast": False}


@pytest.fixture
def task(tmp_path):
    return load_task(write_task(tmp_path))


def program(task, text: str = TEMPLATE, **params) -> Program:
    template = parse_template("opencl_plain", text, "scale/opencl_plain.cl.j2")
    return build_program(task, template, {**PARAMS, **params}, DEVICE)


def test_renders_every_workload_with_numbers_filled_in(task):
    rendered = program(task)
    assert [item.workload for item in rendered.workloads] == ["small", "prime", "large"]
    large = rendered.on("large")  # 8 rows of 32, 64 per group
    assert large.launches == (
        Launch(
            entry="scale",
            args=("x", "y", "rows", "cols", "factor", "partial"),
            grid=(4, 1, 1),
            block=(32, 1, 1),
        ),
    )
    assert large.scratch == (Scratch(name="partial", dtype="float32", elements=16),)
    assert large.build_options == ("-cl-std=CL1.2", "-DWG=32")
    assert rendered.on("small").launches[0].grid == (1, 1, 1)
    assert len({item.source for item in rendered.workloads}) == 1
    with pytest.raises(KeyError):
        rendered.on("other")


def test_a_body_that_uses_dimensions_is_rendered_per_workload(task):
    text = TEMPLATE.replace("float factor", "float factor /* ${cols} */")
    sources = [item.source for item in program(task, text).workloads]
    assert ["/* 7 */" in sources[0], "/* 13 */" in sources[1], "/* 31 */" in sources[2]] == [
        True
    ] * 3


def test_programs_travel_as_json(task):
    rendered = program(task)
    assert from_json(to_json(rendered), Program) == rendered


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (
            "block: [wg]",
            "block: [wg - 32]",
            "workload small: .*: 0 is below 1",
        ),
        ("block: [wg]", "block: [1.5]", "1.5 is not an integer"),
        ("block: [wg]", "block: [wg * 2 ** 40]", "is above 2147483647"),
        ('elements: "rows * per"', "elements: rows - 4", "0 is below 1"),
        ("block: [wg]", "block: [wg]\n    shared_bytes: -wg", "-32 is below 0"),
        ("block: [wg]", "block: [99 // (cols - 13) ** 2]", "workload prime: .*division by zero"),
    ],
)
def test_geometry_that_cannot_be_is_refused(task, old, new, reason):
    assert old in TEMPLATE
    with pytest.raises(TemplateError, match=f"^scale/opencl_plain.cl.j2: .*{reason}"):
        program(task, TEMPLATE.replace(old, new))


def test_parameters_must_fit_the_template(task):
    (template,) = load_templates(task, "opencl")
    with pytest.raises(TemplateError, match="parameter 'fast' is missing"):
        build_program(task, template, {"wg": 32, "per": 2}, DEVICE)
    with pytest.raises(TemplateError, match="parameter 'wgs' is unknown .did you mean 'wg'"):
        build_program(task, template, {**PARAMS, "wgs": 1}, DEVICE)


# --- Equal code, equal hash ----------------------------------------------------------------------


def test_comments_layout_and_names_do_not_count(task):
    plain = program(task)
    commented = program(
        task, TEMPLATE.replace("//% for", "  /* a\n comment */ // and more\n\n//% for")
    )
    assert plain.on("small").source != commented.on("small").source
    assert source_hash(plain) == source_hash(commented)
    assert source_hash(replace(plain, template="opencl_other")) == source_hash(plain)


def test_code_launch_and_options_count(task):
    plain = program(task)
    others = [
        program(task, TEMPLATE.replace("factor * x", "x * factor")),
        program(task, per=4),
        program(task, wg=64),
        program(task, TEMPLATE.replace("-cl-std=CL1.2", "-cl-std=CL2.0")),
        program(task, TEMPLATE.replace("rows * per", "rows * per + 1")),
        replace(plain, backend="cuda"),
    ]
    assert len({source_hash(item) for item in [plain, *others]}) == 1 + len(others)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("a  +b;", "a + b ;"),
        ("a /* x */ + b; // y", "a + b;"),
        ("a +\\\nb;", "a + b;"),
        ("int\n a;\n\n", "int a;"),
        ("#define F(x)   x  // note\nF(1)", "#define F(x) x\nF(1)"),
        ("  #define F 1\nF", "#define F 1\n\nF"),
    ],
)
def test_same_code(left, right):
    assert normalise_source(left, "c") == normalise_source(right, "c")


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("a - -b;", "a --b;"),
        ("a + ++b;", "a++ + b;"),
        ('f("a  b");', 'f("a b");'),
        ('f("a // b");', 'f("a "); // b"'),
        ("f('\"'); // x", 'f(\'"\');""'),
        ("#define F (x)", "#define F(x)"),
        ("#define F\nx", "#define F x"),
        ("x\n#undef F", "x #undef F"),
        ("a = 1.e-3;", "a = 1. e - 3;"),
        ("int a;", "inta;"),
        ("a < < b", "a << b"),
    ],
)
def test_different_code(left, right):
    assert normalise_source(left, "c") != normalise_source(right, "c")


def test_python_keeps_its_indentation():
    code = "def f():\n    # note\n\n    return 1   \n"
    assert normalise_source(code, "python") == "def f():\n    return 1"
    assert normalise_source("if a:\n  b\nc", "python") != normalise_source(
        "if a:\n  b\n  c", "python"
    )


TOKENS = st.sampled_from(
    ["a", "b1", "12", "1.5f", "+", "-", "++", "<<", "<", "(", ")", '"x  y"', ";"]
)


@given(st.lists(TOKENS, max_size=12), st.data())
def test_normalising_forgets_layout_and_nothing_else(tokens, data):
    gaps = st.sampled_from([" ", "  ", "\n", "\t", " /* c */ ", " // c\n"])
    noisy = "".join(token + data.draw(gaps) for token in tokens)
    assert normalise_source(noisy, "c") == " ".join(tokens)


@given(st.text(max_size=80))
def test_normalising_twice_changes_nothing(text):
    once = normalise_source(text, "c")
    assert normalise_source(once, "c") == once
