from __future__ import annotations

import logging
import shutil
from dataclasses import replace

import pytest
import torch

from evo.errors import TaskError
from evo.job import TaskBundle
from evo.serial import from_json, to_json
from evo.task import list_tasks, load_reference, load_task, task_from_bundle
from tests.evo.taskfolder import REFERENCE, TASK_YAML, TEMPLATE, write_task


def test_loads_a_folder(tmp_path):
    task = load_task(write_task(tmp_path))
    assert (task.name, task.dims, task.families) == (
        "scale",
        ("rows", "cols"),
        ("normal", "integers"),
    )
    assert [item.name for item in task.search_workloads] == ["small", "prime"]
    prime = task.workload("prime")
    assert task.inputs[0].resolve(prime.dims) == (3, 14)
    assert task.outputs[0].resolve(prime.dims) == (42,)
    assert (task.bytes(prime), task.flops(prime)) == (336.0, 42.0)
    assert task.scalar_values == {"factor": 2.5}
    assert task.tolerance.max_rel == 1e-6
    assert task.baseline["opencl"].params == {"wg": 32}
    assert "special" not in task.all_families
    assert len(task.all_families) == 6


def test_the_path_may_be_text(tmp_path):
    assert load_task(str(write_task(tmp_path))).name == "scale"


@pytest.mark.parametrize("name", list_tasks())
def test_shipped_tasks_load_and_hold_a_workload_back(name):
    task = load_task(name)
    assert task.name == name
    assert any(item.confirm for item in task.workloads)
    assert len(task.search_workloads) >= 2
    assert callable(load_reference(task))


def test_an_unknown_task_lists_the_shipped_ones_and_suggests():
    with pytest.raises(
        TaskError, match=r"unknown task 'sofmax' \(did you mean 'softmax'\?.*matmul"
    ):
        load_task("sofmax")
    with pytest.raises(TaskError, match="unknown task ''"):
        load_task("")


def test_missing_files_are_named(tmp_path):
    folder = write_task(tmp_path, reference=None)
    with pytest.raises(TaskError, match=r"has no reference\.py"):
        load_task(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(TaskError, match=r"has no task\.yaml"):
        load_task(tmp_path / "empty")


def edit(old: str, new: str) -> str:
    assert old in TASK_YAML
    return TASK_YAML.replace(old, new)


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        (edit("schema: 1", "schema: 2"), 1, "unknown schema 2 (allowed: 1)"),
        (edit("name: scale", "name: my-scale"), 1, "'my-scale' is not a name"),
        (edit("dims: [rows, cols]", "dims: [rows, cols, rows]"), 1, "'rows' is used twice"),
        (edit("dims: [rows, cols]", "dims: [rows, min]"), 1, "'min' is reserved"),
        (edit("dims: [rows, cols]", "dims: [rows, c-s]"), 1, "'c-s' is not a name"),
        (edit("dims: [rows, cols]", "dims: rows"), 4, "dims: expected a list, got 'rows'"),
        (edit("flops: rows", "flop: rows"), 1, "missing key 'flops'"),
        (edit("deterministic: true", "determinstic: true"), 20,
         "unknown key (did you mean 'deterministic'?"),
        (edit("deterministic: true", "deterministic: yes"), 20, "expected true or false"),
        (edit("x: {dtype: float32", "x: {dtype: float31"), 6,
         "inputs.x.dtype: unknown value 'float31' (did you mean 'float32'?"),
        (edit('"cols + 1"]}', '"colls + 1"]}'), 6, "unknown name 'colls' (did you mean 'cols'?"),
        (edit('"cols + 1"]}', '"cols - 7"]}'), 6, "workload small: in expression 'cols - 7': 0"),
        (edit('"cols + 1"]}', "{a: 1}]}"), 6, "inputs.x.shape[1]: expected an expression"),
        (edit("shape: [rows * (cols + 1)]", "shape: []"), 8, "outputs.y.shape: needs at least one"),
        (edit("value: 2.5", "value: .inf"), 10, "factor.value: must be finite"),
        (edit("float32, value", "int32, value"), 10, "int32 needs an integer"),
        (edit("rows: 3, cols: 13", "rows: 3"), 13, "workloads[1].dims: missing key 'cols'"),
        (edit("rows: 3, cols", "rows: 0, cols"), 13, "workloads[1].dims.rows: must lie between"),
        (edit("rows: 3, cols", "rows: true, cols"), 13, "expected an integer, got True"),
        (edit("rows: 3, cols", "rows: 3, deep: 1, cols"), 13, "dims.deep: unknown key"),
        (edit("name: prime", "name: small"), 13, "names must be given and unique"),
        (edit("[normal, integers]", "[normal, odd]"), 15, "families[1]: unknown family"),
        (edit("[normal, integers]", "[normal, special]"), 15, "needs nonfinite: propagate"),
        (edit("[normal, integers]", "[normal, normal]"), 15, "each once"),
        (edit("excluded", "ignored"), 16, "unknown value 'ignored'"),
        (edit("max_rel: 1e-6", "max_rel: 2"), 17, "tolerance.max_rel: must lie between 0 and 1"),
        (edit("max_rel: 1e-6", "max_rel: small"), 17, "expected a number, got 'small'"),
        (edit("bytes: 8 * rows * (cols + 1)", "bytes: 0"), 18, "bytes: workload small: got 0"),
        (edit("bytes: 8 * rows", "bytes: 8 / rows"), 18, "Div is not allowed"),
        (edit("{wg: 32}", "{wg: [32]}"), 22, "baseline.opencl.params.wg: expected a number"),
        (edit("schema: 1\n", "schema: 1\nschema: 1\n"), 2, "key 'schema' is given twice"),
        (edit("schema: 1\n", "schema: &a 1\nother: *a\n"), 2, "aliases are not allowed"),
        (edit("schema: 1\n", "schema: [1\n"), 2, "expected"),
        ("just text", 1, "expected a mapping"),
    ],
)  # fmt: skip
def test_malformed_task_files_name_file_line_and_key(tmp_path, text, line, reason):
    with pytest.raises(TaskError) as caught:
        load_task(write_task(tmp_path, task_yaml=text))
    message = str(caught.value)
    assert f"task.yaml:{line}: " in message
    assert reason in message
    assert "\n" not in message


def test_all_workloads_held_back_leaves_nothing_to_search(tmp_path):
    text = TASK_YAML.replace("}}\n", "}, confirm: true}\n")
    with pytest.raises(TaskError, match="at least one workload that is not marked confirm"):
        load_task(write_task(tmp_path, task_yaml=text))


def test_no_workload_held_back_is_worth_a_warning(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        load_task(write_task(tmp_path, task_yaml=TASK_YAML.replace(", confirm: true", "")))
    assert "no workload is marked confirm" in caplog.text


def test_the_baseline_must_exist(tmp_path):
    with pytest.raises(TaskError, match="no template 'opencl_plain'.*did you mean 'opencl_plane'"):
        load_task(write_task(tmp_path, templates={"opencl_plane.cl.j2": TEMPLATE}))


def test_unknown_workload(tmp_path):
    with pytest.raises(TaskError, match="no workload 'primes'.*did you mean 'prime'"):
        load_task(write_task(tmp_path)).workload("primes")


def test_a_bundle_travels_as_json_and_gives_the_same_task(tmp_path):
    task = load_task(write_task(tmp_path))
    shutil.rmtree(tmp_path / "scale")
    arrived = task_from_bundle(from_json(to_json(task.bundle), TaskBundle))
    assert replace(arrived, folder=task.folder) == task
    assert arrived.folder is None


def test_the_hash_covers_both_files_and_not_the_templates(tmp_path):
    plain = load_task(write_task(tmp_path / "a")).bundle.task_hash
    assert load_task(write_task(tmp_path / "b")).bundle.task_hash == plain
    more = {"opencl_plain.cl.j2": TEMPLATE, "opencl_other.cl.j2": TEMPLATE}
    assert load_task(write_task(tmp_path / "c", templates=more)).bundle.task_hash == plain
    changed = write_task(tmp_path / "d", reference=REFERENCE + "\n# changed\n")
    assert load_task(changed).bundle.task_hash != plain
    looser = write_task(tmp_path / "e", task_yaml=TASK_YAML.replace("1e-6", "1e-3"))
    assert load_task(looser).bundle.task_hash != plain


def test_a_bundle_that_changed_on_the_way_is_refused(tmp_path):
    bundle = load_task(write_task(tmp_path)).bundle
    files = {**bundle.files, "reference.py": "def reference(*a): return {}"}
    with pytest.raises(TaskError, match="do not fit the hash"):
        task_from_bundle(replace(bundle, files=files))


def test_the_reference_computes(tmp_path):
    reference = load_reference(load_task(write_task(tmp_path)))
    x = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    assert reference({"x": x}, {"rows": 1, "cols": 1}, {"factor": 2.5})["y"].tolist() == [2.5, 5.0]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("def reference(:\n", r"reference\.py:1: "),
        ("import no_such_module_here\n", "ModuleNotFoundError"),
        ("reference = 3\n", "defines no function reference"),
        ("def other(): pass\n", "defines no function reference"),
    ],
)
def test_a_broken_reference_is_one_line(tmp_path, text, reason):
    task = load_task(write_task(tmp_path, reference=text))
    with pytest.raises(TaskError, match=reason) as caught:
        load_reference(task)
    assert "\n" not in str(caught.value)
