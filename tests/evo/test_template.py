from __future__ import annotations

import pytest

from evo import sandbox
from evo.errors import ConfigError, SpaceError, TaskError, TemplateError
from evo.sandbox import Body
from evo.task import list_tasks, load_task, task_from_bundle
from evo.template import load_templates, parse_template
from tests.evo.taskfolder import DEVICE, TASK_YAML, TEMPLATE, write_task

DIMS = {"rows": 4, "cols": 7}
SCALARS = {"factor": 2.5}
PARAMS = {"wg": 64, "per": 2, "fast": True}


def render(body: str, language: str = "c", **values) -> str:
    return Body(body, language=language, where="t").render({"device": DEVICE, **values})


def edit(old: str, new: str) -> str:
    assert old in TEMPLATE
    return TEMPLATE.replace(old, new, 1)


# --- Loading and rendering -----------------------------------------------------------------------


def test_renders_only_the_body():
    source = parse_template("opencl_plain", TEMPLATE).render(PARAMS, DIMS, SCALARS, DEVICE)
    assert source.startswith("#define STEP 2\n__kernel void scale(")
    assert source.count("factor * x") == 2
    assert "y[get_global_id(0) * 2 + 1]" in source
    assert "${" not in source
    assert "//%" not in source
    assert "---" not in source
    plain = parse_template("opencl_plain", TEMPLATE)
    assert "STEP" not in plain.render({**PARAMS, "fast": False}, DIMS, SCALARS, DEVICE)


def test_declares_parameters_launches_and_scratch():
    template = parse_template("opencl_plain", TEMPLATE)
    assert (template.backend, template.language) == ("opencl", "c")
    assert [param.name for param in template.front.params] == ["wg", "per", "fast"]
    assert template.front.launches[0].args == ("x", "y", "rows", "cols", "factor", "partial")
    assert template.front.scratch[0].elements.text == "rows * per"
    assert template.body_names == {"fast", "per", "range", "wg"}
    assert template.render_options({**PARAMS, "device": DEVICE}) == ("-cl-std=CL1.2", "-DWG=64")


def test_the_space_holds_on_all_workloads_and_the_device(tmp_path):
    task = load_task(write_task(tmp_path))
    (template,) = load_templates(task, "opencl")
    space = template.space(task, DEVICE)
    assert space.size().count == 24  # wg 16..128 (device), per 1, 2, 4, fast
    assert space.product_size == 30
    assert space.defaults() == {"wg": 64, "per": 2, "fast": False}


def test_no_valid_point_on_a_device_names_the_template(tmp_path):
    text = edit("wg * per <= 512", "wg * per <= 8")
    task = load_task(write_task(tmp_path, templates={"opencl_plain.cl.j2": text}))
    (template,) = load_templates(task, "opencl")
    with pytest.raises(SpaceError, match=r"opencl_plain\.cl\.j2: no valid point .*wg \* per <= 8"):
        template.space(task, DEVICE)


def test_only_the_backends_templates_are_loaded(tmp_path):
    text = TEMPLATE.replace("scale", "scale2")
    broken = {
        "cuda_x.cu.j2": "not a template",
        "opencl_b.cl.j2": text,
        "opencl_plain.cl.j2": TEMPLATE,
    }
    task = load_task(write_task(tmp_path, templates=broken))
    assert [t.name for t in load_templates(task, "opencl")] == ["opencl_b", "opencl_plain"]
    with pytest.raises(ConfigError, match="no template for backend 'opncl'.*did you mean 'opencl'"):
        load_templates(task, "opncl")
    with pytest.raises(TemplateError, match=r"scale/cuda_x\.cu\.j2:1: "):
        load_templates(task, "cuda")


def test_a_task_from_a_bundle_has_no_templates(tmp_path):
    task = task_from_bundle(load_task(write_task(tmp_path)).bundle)
    with pytest.raises(TaskError, match="bundle"):
        load_templates(task, "opencl")


def test_two_files_with_one_name_are_refused(tmp_path):
    files = {"opencl_plain.cl.j2": TEMPLATE, "opencl_plain.clx.j2": TEMPLATE}
    with pytest.raises(TemplateError, match="a second template called 'opencl_plain'"):
        load_templates(load_task(write_task(tmp_path, templates=files)), "opencl")


@pytest.mark.parametrize("name", ["", "OpenCL", "opencl-x", "../opencl", "opencl_x.cl"])
def test_bad_names_are_refused(name):
    with pytest.raises(TemplateError, match="not a template name"):
        parse_template(name, TEMPLATE)


def test_the_hash_ignores_line_ends_and_trailing_blanks_only():
    plain = parse_template("opencl_a", TEMPLATE)
    assert parse_template("opencl_b", TEMPLATE.replace("\n", "  \r\n") + "\n\n").hash == plain.hash
    assert (
        parse_template("opencl_a", TEMPLATE.replace("factor * x", "x * factor")).hash != plain.hash
    )
    crlf = parse_template("opencl_b", TEMPLATE.replace("\n", "\r\n"))
    assert crlf.render(PARAMS, DIMS, SCALARS, DEVICE) == plain.render(PARAMS, DIMS, SCALARS, DEVICE)


@pytest.mark.parametrize("name", list_tasks())
def test_shipped_templates_render_at_all_corners(name):
    task = load_task(name)
    for template in load_templates(task, "opencl"):
        space = template.space(task, DEVICE)
        for params in space.corners():
            for workload in task.workloads:
                source = template.render(params, workload.dims, task.scalar_values, DEVICE)
                assert template.front.launches[0].entry in source
                assert "${" not in source


# --- Front matter errors -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("__kernel void f() {}\n", 1, "a template starts with front matter"),
        ("\n\n// x\n", 3, "a template starts with front matter"),
        ("", 1, "a template starts with front matter"),
        (TEMPLATE.replace("---*/", ""), 1, "not closed by '---*/'"),
        (TEMPLATE + "---*/\n", 28, "a second time"),
        (TEMPLATE + "/*---\n---*/\n", 28, "a second time"),
        (edit("params:", "parameters:"), 3, "unknown key (did you mean 'params'?"),
        (edit("launches:", "launch:"), 2, "missing key 'launches'"),
        (edit("pow2: [16, 256]", "pow2: [16, 200]"), 4, "params.wg: parameter wg: 200 is not"),
        (edit("pow2: [16, 256]", "pow2: [256, 16]"), 4, "the lowest value is above the highest"),
        (edit("pow2: [16, 256]", "pow2: [16]"), 4, "expected two integers"),
        (edit("pow2: [16, 256]", "pow3: [16, 256]"), 4, "exactly one of pow2, range, values, bool"),
        (edit("pow2: [16, 256]", "bool: true, pow2: [1, 2]"), 4, "exactly one of"),
        (edit("default: 64", "default: 65"), 4, "default 65 is not one of 16, 32, 64, 128, 256"),
        (edit(", default: 64", ""), 4, "missing key 'default'"),
        (edit("default: 64", "default: 64, step: 2"), 4, "params.wg.step: unknown key"),
        (edit("[1, 2, 4]", "[1, 2, [4]]"), 5, "params.per.values[2]: expected a number"),
        (edit("[1, 2, 4]", "[1, 2, x]"), 5, "mixes number and text"),
        (edit("bool: true", "bool: false"), 6, "write bool: true"),
        (edit("per: {", "rows: {"), 5, "params.rows: the task scale already uses the name 'rows'"),
        (edit("per: {", "min: {"), 3, "'min' is reserved"),
        (edit("wg * per <= 512", "wg * pre <= 512"), 9, "constraints[1]: in 'wg * pre <= 512'"),
        (edit("wg * per <= 512", "wg * per <= open('x')"), 9, "open cannot be called"),
        (edit("wg * per <= 512", "wg <"), 9, "constraints[1]: in expression 'wg <'"),
        (edit("partial: {", "x: {"), 11, "scratch.x: the name 'x' is already in use"),
        (edit('"rows * per"', '"rows * cells"'), 11, "scratch.partial.elements"),
        (edit("entry: scale", "entry: scales"), 14, "the body has no function 'scales'"),
        (edit("entry: scale", "entry: 'sc ale'"), 14, "not a function name"),
        (edit("[x, y, rows,", "[x, y, row,"), 15, "launches[0].args[2]: unknown argument 'row'"),
        (edit("[x, y, rows,", "[x, wg, rows,"), 15, "unknown argument 'wg'"),
        (edit("[x, y, rows,", "[x, rows,"), 13, "no launch takes the output 'y'"),
        (edit("block: [wg]", "block: [wg, 1, 1, 1]"), 17, "takes 1 to 3 expressions"),
        (edit("block: [wg]", "block: [wgs]"), 17, "launches[0].block[0]: in 'wgs': unknown name"),
        (edit("block: [wg]", "block: wg"), 17, "expected a list"),
        (edit("block: [wg]", "block: [wg]\n    shared: 4"), 18, "unknown key"),
        (edit("${wg}", "${wgs}"), 12, "build_options[1]"),
    ],
)  # fmt: skip
def test_malformed_templates_name_file_and_line(tmp_path, text, line, reason):
    folder = write_task(tmp_path, templates={"opencl_plain.cl.j2": text})
    with pytest.raises(TemplateError) as caught:
        load_templates(load_task(folder), "opencl")
    message = str(caught.value)
    assert message.startswith(f"{tmp_path.name}/scale/opencl_plain.cl.j2:")
    if "build_options" not in reason:
        assert f".cl.j2:{line}: " in message
    assert reason in message
    assert "\n" not in message


# --- Body errors ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "line", "reason"),
    [
        ("//% endif", "//% endiff", 21, "Encountered unknown tag 'endiff'"),
        ("//% endif\n", "", 26, "Unexpected end of template"),
        ("//% if fast", "//% if fast and", 19, "end of statement"),
        ("STEP ${per}", "STEP ${per", 21, "unexpected"),  # where the expression goes wrong
        ("STEP ${per}", "STEP ${perr}", 20, "unknown name 'perr' (did you mean 'per'?"),
        ("STEP ${per}", "STEP ${per | upper}", 20, "Filter is not allowed"),
        ("STEP ${per}", "STEP ${per / 2}", 20, "Div is not allowed"),
        ("STEP ${per}", "STEP ${''.__class__}", 20, "only device and loop have attributes"),
        ("STEP ${per}", "STEP ${device.__class__}", 20, "unknown device field '__class__'"),
        ("STEP ${per}", "STEP ${device.local_mem}", 20, "did you mean 'local_mem_bytes'"),
        ("//% if fast", "//% include 'x'\n//% if fast", 19, "Include is not allowed"),
        ("//% if fast", "//% set range = 3\n//% if fast", 19, "range cannot be assigned"),
        ("in range(per)", "in range(per) recursive", 24, "recursive loops"),
        ("${per} + ${i}]", "${per} + ${(x)(1)}]", 25, "unknown name 'x'"),
    ],
)
def test_errors_in_the_body_name_the_line_in_the_file(tmp_path, old, new, line, reason):
    folder = write_task(tmp_path, templates={"opencl_plain.cl.j2": edit(old, new)})
    with pytest.raises(TemplateError) as caught:
        load_templates(load_task(folder), "opencl")
    message = str(caught.value)
    assert f"scale/opencl_plain.cl.j2:{line}: " in message
    assert reason in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("old", "new", "line", "reason"),
    [
        ("STEP ${per}", "STEP ${per // 0}", 20, "division by zero"),
        ("STEP ${per}", "STEP ${log2(per - per)}", 20, "log2 needs a positive"),
        ("STEP ${per}", "STEP ${9 ** 99}", 20, "2**100"),
        ("STEP ${per}", "STEP ${[1, 2][per]}", 20, "index 2 is outside a list of 2"),
        ("STEP ${per}", "STEP ${per['x']}", 20, "only a list can be indexed"),
        ("STEP ${per}", "STEP ${range}", 20, "cannot be printed"),
        ("in range(per)", "in range(1000000)", 24, "loop passes"),
        ("in range(per)", "in range(1.5)", 24, "range takes integers"),
        ("in range(per)", "in 'text'", 24, "for takes a list"),
    ],
)
def test_errors_while_rendering_name_the_line_in_the_file(old, new, line, reason):
    template = parse_template("opencl_plain", edit(old, new), "scale/opencl_plain.cl.j2")
    with pytest.raises(TemplateError) as caught:
        template.render(PARAMS, DIMS, SCALARS, DEVICE)
    message = str(caught.value)
    assert message.startswith(f"scale/opencl_plain.cl.j2:{line}: ")
    assert reason in message


def test_an_unset_name_is_an_error_even_where_a_branch_sets_it():
    body = "//% if fast\n//% set step = 1\n//% endif\n${step}\n"
    assert render(body, fast=True) == "1\n"
    with pytest.raises(TemplateError, match=r"t:4: 'step' is undefined"):
        render(body, fast=False)


# --- The dialect ---------------------------------------------------------------------------------


def test_c_code_needs_no_escaping():
    code = "int a[2][2] = {{1, 2}, {3, 4}};  // 100% {# x #} {% y %} #% z\n#define F(x) {{x}}\n"
    assert render(code) == code


def test_python_code_needs_no_escaping():
    code = "a = {1: {2: 3}}  # {{ x }} //% y\nb = a % 3 // 2\n"
    assert render(code, language="python") == code
    assert render("#% for i in range(2)\nx${i} = ${i == 0}\n#% endfor\n", language="python") == (
        "x0 = True\nx1 = False\n"
    )


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("${a == 4} ${not a}", "1 0"),
        ("${'float' ~ a}", "float4"),
        ("${'v%d_%s%%' % (a, 'x')}", "v4_x%"),
        ("${'a' + 'b'}", "ab"),
        ("${['x', 'y'][1]}", "y"),
        ("${device.local_mem_bytes // 1024}k ${device.max_block[0]}", "32k 1"),
        (
            "<% for i in [1, 2, 4] if i < 4 %>${i}${', ' if not loop.last else ''}<% endfor %>",
            "1, 2",
        ),
        ("<% macro add(p, q=2) %>${p + q}<% endmacro %>${add(a)} ${add(a, q=3)}", "6 7"),
        ("<% set b = a * 2 %>${b}", "8"),
        ("a <# not this #>b", "a b"),
        ("${min(a, 2)} ${max(a, 2)} ${ceil_div(9, a)} ${round_up(9, a)} ${log2(a)}", "2 4 3 12 2"),
        ("${1.5 * 2}f", "3.0f"),
    ],
)
def test_what_bodies_can_do(body, expected):
    assert render(body, a=4) == expected


@pytest.mark.parametrize(
    "body",
    [
        "${''.__class__.__mro__}",
        "${''['__class__']}",
        "${a['__class__']}",
        "${[]['__class__']}",
        "${device['__class__']}",
        "${device.__init__.__globals__}",
        "${range.__self__}",
        "${min.__globals__}",
        "${loop.__class__}",
        "<% for i in [1] %>${loop.__init__.__globals__}<% endfor %>",
        "<% for i in [1] %>${loop['__init__']}<% endfor %>",
        "<% macro f() %><% endmacro %>${f.__globals__}",
        "<% macro f() %><% endmacro %>${f['__globals__']}",
        "${self.__init__}",
        "${self}",
        "${cycler}",
        "${lipsum.__globals__}",
        "${namespace()}",
        "${dict(x=1)}",
        "${a | attr('__class__')}",
        "${(a | string).format(1)}",
        "${'{0.__class__}'.format(a)}",
        "${'%(x)s' % {'x': 1}}",
        "${'%999999999d' % a}",
        "${'%c' % a}",
        "<% import 'os' as os %>",
        "<% include '/etc/passwd' %>",
        "<% extends 'x' %>",
        "<% block x %><% endblock %>",
        "<% set a %>text<% endset %>",
        "<% filter upper %>x<% endfilter %>",
        "<% call f() %><% endcall %>",
        "<% set device.name = 1 %>",
        "<% set min = 1 %>",
        "<% for min in [1] %><% endfor %>",
        "<% macro min() %><% endmacro %>",
        "<% macro f(min) %><% endmacro %>",
        "<% macro _kelites_bounded(x) %><% endmacro %>",
        "${_kelites_budget}",
        "${_kelites_joined(1)}",
        "<% set _kelites_joined = 1 %>",
        "${'x' * 10}",
        "${a()}",
        "${a ~ min}",
        "${[1, 2]}",
        "${none}",
        "${a.b}",
        "${'abc'[0:2]}",
    ],
)
def test_nothing_else_gets_through(body):
    with pytest.raises(TemplateError):
        render(body, a=4)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("<% for i in range(400) %><% for j in range(400) %><% endfor %><% endfor %>", "passes"),
        ("<% for i in range(10**12) %>x<% endfor %>", "loop passes"),
        ("<% macro f(n) %>${f(n) ~ f(n)}<% endmacro %>${f(1)}", "without end"),
        ("<% macro f(n) %><% if n > 0 %>${f(n - 1)}${f(n - 1)}<% endif %><% endmacro %>${f(40)}",
         "loop passes and calls"),
        ("".join("<% set a = a ~ a %>\n" for _ in range(60)) + "${a}", "string is longer"),
        ("".join("<% set a = a + a %>\n" for _ in range(60)) + "${a}", "string is longer"),
        ("<% macro f(s) %>${s}${s}<% endmacro %>" + "${" + "f(" * 30 + "a" + ")" * 30 + "}",
         "string is longer"),
        ("<% for i in range(9000) %>" + "x" * 200 + "<% endfor %>", "output is longer"),
        ("x" * 300_000, "longer than 200000"),
        ("${" + "(" * 3000 + "1" + ")" * 3000 + "}", "nested too deeply"),
        ("<% if a %>" * 3000 + "<% endif %>" * 3000, ""),
    ],
)  # fmt: skip
def test_runaway_templates_are_stopped(body, reason):
    with pytest.raises(TemplateError) as caught:
        render(body, a="xy")
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 500


def test_python_templates_keep_their_front_matter_in_comments():
    text = (
        "#---\n# description: x\n#\n# params:\n#   n: {range: [1, 4], default: 2}\n# launches:\n"
        "#   - {entry: kernel, args: [x, y], grid: [rows], block: [1]}\n#---\n"
        "import triton\n\n#% if n > 1\ndef kernel(): return ${n} > 1\n#% endif\n"
    )
    template = parse_template("triton_a", text)
    assert template.language == "python"
    source = template.render({"n": 2}, DIMS, SCALARS, DEVICE)
    assert source == "import triton\n\ndef kernel(): return 2 > 1\n"
    with pytest.raises(TemplateError, match="triton_a:2: a line of the front matter starts with"):
        parse_template("triton_a", text.replace("# description", "description"))
    with pytest.raises(TemplateError, match="triton_a:5: params.n: .*default 9"):
        parse_template("triton_a", text.replace("default: 2", "default: 9"))


def test_limits_are_there_to_be_met():
    """An honest large template stays well inside the bounds."""
    body = "<% for i in range(64) %><% for j in range(64) %>x[${i}][${j}]<% endfor %><% endfor %>"
    assert render(body).count("x[") == 4096
    assert sandbox.MAX_STEPS > 4096 * 8


def test_a_task_and_its_templates_share_one_namespace(tmp_path):
    text = TASK_YAML.replace("dims: [rows, cols]", "dims: [rows, cols, wg]").replace(
        "cols: ", "wg: 1, cols: "
    )
    with pytest.raises(TemplateError, match=r"params.wg: the task scale already uses .* 'wg'"):
        load_templates(load_task(write_task(tmp_path, task_yaml=text)), "opencl")
