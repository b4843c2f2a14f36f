from __future__ import annotations

import dataclasses
import threading

import pytest

from evo.evaluation import EvaluationStatus, Resources
from evo.job import DeviceInfo, Launch, Program, Scratch, WorkloadProgram
from evo.task import task_from_bundle
from workers import corpus
from workers.execution import Compiled
from workers.measure.builds import Build, Builder
from workers.measure.static import problem_with
from workers.measure.verdict import Rejected

TASK = task_from_bundle(corpus.bundle())
DEVICE = DeviceInfo(
    backend="opencl",
    name="d",
    kind="cpu",
    max_work_group_size=256,
    max_block=(256, 256, 64),
    local_mem_bytes=1000,
    global_mem_bytes=1_000_000,
)
HONEST = corpus.HONEST_CASE.program()


def edited(**changes: object) -> Program:
    """The honest program with the first workload's fields replaced."""
    first = dataclasses.replace(HONEST.workloads[0], **changes)  # type: ignore[arg-type]
    return dataclasses.replace(HONEST, workloads=(first, *HONEST.workloads[1:]))


def launched(**changes: object) -> Program:
    launch = dataclasses.replace(HONEST.workloads[0].launches[0], **changes)  # type: ignore[arg-type]
    return edited(launches=(launch,))


def source(text: str) -> Program:
    return edited(source=text + "\n" + HONEST.workloads[0].source)


def test_an_honest_program_has_no_problem() -> None:
    assert problem_with(HONEST, TASK, DEVICE) == ""


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (
            dataclasses.replace(HONEST, backend="cuda"),
            "for backend cuda, this device runs opencl",
        ),
        (
            dataclasses.replace(HONEST, workloads=HONEST.workloads[1:]),
            "nothing for workload square",
        ),
        (edited(launches=()), "no launches"),
        (launched(args=("x", "z")), "no argument is called 'z'"),
        (launched(grid=(0, 1, 1)), "must be positive"),
        (launched(grid=(2**31, 1, 1)), "work-items in dimension 0"),
        (launched(block=(1, 1, 65)), "block 65 in dimension 2, allowed 64"),
        (launched(block=(32, 16, 1)), "work-group of 512, the device allows 256"),
        (launched(shared_bytes=1001), "1001 bytes of local memory, the device has 1000"),
        (
            edited(scratch=(Scratch(name="work", dtype="float32", elements=10**6),)),
            "scratch of 4000000 bytes, allowed are 250000",
        ),
        (edited(scratch=(Scratch(name="x", dtype="float32", elements=1),)), "'x'|buffer x"),
        (edited(build_options=("-I/etc",)), "build option '-I/etc' is not allowed"),
        (edited(build_options=("-DA=1 -I/etc",)), "is not allowed"),
        (edited(source="x" * (1 << 20) + "y"), "allowed are 1048576"),
    ],
)
def test_refusals_name_the_limit(program: Program, reason: str) -> None:
    import re

    found = problem_with(program, TASK, DEVICE)
    assert re.search(reason, found) or reason in found
    assert "\n" not in found


@pytest.mark.parametrize(
    "text",
    [
        '#include "/etc/passwd"',
        "  #  include <x>",
        "#inc\\\nlude <x>",
        "%:include <x>",
        "??=include <x>",
        "#/* */include <x>",
        '#define S "/*"\n#include <x>\n#define T "*/"',
        "#if __has_include(<x>)\n#endif",
        '__asm__("nop");',
        'void f(void) { asm volatile("nop"); }',
    ],
)
def test_host_constructs_are_seen_through(text: str) -> None:
    assert "not allowed in device code" in problem_with(source(text), TASK, DEVICE)


@pytest.mark.parametrize(
    "text",
    [
        "// #include <x>",
        "/* asm */",
        '__constant char s[] = "asm #include";',
        "int asm_count(int assemble) { return assemble; }",
        "#pragma unroll",
    ],
)
def test_harmless_look_alikes_pass(text: str) -> None:
    assert problem_with(source(text), TASK, DEVICE) == ""


@pytest.mark.parametrize("option", ["-cl-std=CL1.2", "-cl-mad-enable", "-DN=4", "-w"])
def test_ordinary_options_pass(option: str) -> None:
    assert problem_with(edited(build_options=(option,)), TASK, DEVICE) == ""


class FakeCompiler:
    """Compiles by hashing; counts."""

    def __init__(self, **result: object) -> None:
        self.result = result
        self.sources: list[str] = []

    def compile(self, *, source: str, **_: object) -> Compiled:
        self.sources.append(source)
        fields: dict[str, object] = {"ok": True, "code_hash": str(hash(source)), "compile_s": 0.5}
        return Compiled(**(fields | self.result))  # type: ignore[arg-type]


def build(program: Program, **result: object) -> tuple[Build, FakeCompiler]:
    compiler = FakeCompiler(**result)
    return Builder(compiler=compiler).build(program, DEVICE, 1.0), compiler


def test_equal_sources_compile_once() -> None:
    compiler = FakeCompiler()
    builder = Builder(compiler=compiler)
    first = builder.build(HONEST, DEVICE, 1.0)
    second = builder.build(HONEST, DEVICE, 1.0)
    assert len(compiler.sources) == 1
    assert (first.compile_s, second.compile_s) == (0.5, 0.0)
    assert first.code_hash == second.code_hash


def test_failed_compilations_are_not_remembered() -> None:
    compiler = FakeCompiler(ok=False, log="x.cl:1:2: error: no such thing\nmore")
    builder = Builder(compiler=compiler)
    for _ in range(2):
        with pytest.raises(Rejected) as caught:
            builder.build(HONEST, DEVICE, 1.0)
        assert caught.value.status is EvaluationStatus.COMPILE_ERROR
        assert caught.value.message.startswith("x.cl:1:2: error: no such thing")
        assert caught.value.log.endswith("more")
    assert len(compiler.sources) == 2


def test_forbidden_code_and_too_much_local_memory_are_invalid() -> None:
    for result in ({"forbidden": "a"}, {"resources": Resources(local_mem_bytes=1001)}):
        with pytest.raises(Rejected) as caught:
            build(HONEST, **result)
        assert caught.value.status is EvaluationStatus.INVALID


def test_logs_are_truncated() -> None:
    with pytest.raises(Rejected) as caught:
        build(HONEST, ok=False, log="e" * 100_000)
    assert len(caught.value.log) < 17_000


def two_buffers(first: str, second: str, entry: str) -> Program:
    """A program with two scratch buffers; names vary, meaning does not."""
    launch = Launch(entry=entry, args=("x", first, second, "y"), grid=(1, 1, 1), block=(1, 1, 1))
    item = WorkloadProgram(
        workload="square",
        source="same",
        launches=(launch,),
        scratch=(
            Scratch(name=second, dtype="int32", elements=7),
            Scratch(name=first, dtype="float32", elements=5),
        ),
    )
    return Program(backend="opencl", template="t", workloads=(item,))


def test_code_hash_ignores_names_only() -> None:
    one = build(two_buffers("a", "b", "k"))[0].code_hash
    renamed = build(two_buffers("p", "q", "other"))[0].code_hash
    assert one == renamed
    wider = launched(grid=(5, 1, 1))
    assert build(wider)[0].code_hash != build(HONEST)[0].code_hash
    other_args = launched(args=("y", "x", "rows", "cols"))
    assert build(other_args)[0].code_hash != build(HONEST)[0].code_hash


def test_distinct_sources_compile_side_by_side_and_are_judged_in_order() -> None:
    both_started = threading.Barrier(2, timeout=10)

    class Waiting(FakeCompiler):
        def compile(self, *, source: str, **options: object) -> Compiled:
            both_started.wait()
            return super().compile(source=source, **options)

    first = HONEST.workloads[0]
    second = dataclasses.replace(HONEST.workloads[1], source=first.source + "\n// other\n")
    program = dataclasses.replace(HONEST, workloads=(first, second))
    built = Builder(compiler=Waiting()).build(program, DEVICE, 1.0)
    assert list(built.keys) == [first.workload, second.workload]
    assert built.code(first.workload).code_hash != built.code(second.workload).code_hash
    assert built.compile_s == 1.0
