# ruff: noqa: D102
"""Conformance suite for backends: inherit it and every backend is held to the contract.

    class TestMyBackend(BackendSuite):
        scale = "..."           # kernel scale(x, y, n, a): y[i] = a * x[i] for i < n
        ...

        @pytest.fixture(scope="class")
        def executor(self): ...  # a started executor of that backend, closed afterwards

Needs pytest. It drives the backend the way the evaluation does, through an executor, and imports
nothing of the workers: the subclass hands over what it needs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from evo.job import DeviceInfo, Launch, Scratch, WorkloadProgram

ELEMENTS = 1000
BLOCK = 64
FACTOR = 1.5
TIMEOUT_S = 30.0
ARGS = ("x", "y", "n", "a")


class BackendSuite:
    """Tests of compile, load, run and measure that hold for any device.

    Attributes:
        backend: Its name.
        scale: Source of a kernel `scale(x, y, n, a)` that sets y[i] = a * x[i] for i < n, with one
            work-item per element; n is an int32, a float32.
        commented_scale: The same with comments and blank lines added.
        broken: Source that does not compile, for lack of the name `no_such_name`.
        stateful: Source of a kernel `scale` that adds one to a writable program-scope variable, or
            None if the language has no such thing.
        build_options: For all of them.
        kernel_failure: Exception of a refused launch.
        timed_arm: Makes an arm from `code_key` and `program`.
    """

    backend: str
    scale: str
    commented_scale: str
    broken: str
    stateful: str | None = None
    build_options: tuple[str, ...] = ()
    stateful_options: tuple[str, ...] = ()
    kernel_failure: type[Exception]
    timed_arm: Any

    @pytest.fixture(scope="class")
    def executor(self) -> Any:
        raise NotImplementedError

    @pytest.fixture(scope="class")
    def code_key(self, executor: Any) -> str:
        compiled = self.compile(executor, self.scale)
        assert compiled.ok, compiled.log
        executor.load("scale", compiled.binary, self.scale, self.build_options, TIMEOUT_S)
        return "scale"

    @pytest.fixture
    def inputs(self, executor: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
        values = np.random.default_rng(0).standard_normal(ELEMENTS).astype(np.float32)
        executor.upload("inputs", {"x": values}, TIMEOUT_S)
        return values

    def compile(self, executor: Any, source: str, *entries: str) -> Any:
        return executor.compile(
            source=source,
            build_options=self.build_options,
            entries=entries or ("scale",),
            timeout_s=TIMEOUT_S,
        )

    def program(self, **changes: Any) -> WorkloadProgram:
        grid = -(-(ELEMENTS + 1) // BLOCK)
        fields: dict[str, Any] = {"grid": (grid, 1, 1), "block": (BLOCK, 1, 1), "args": ARGS}
        launch = Launch(**({"entry": "scale"} | fields | changes))
        return WorkloadProgram(workload="suite", source=self.scale, launches=(launch,))

    def request(self, *, n: int = ELEMENTS) -> dict[str, Any]:
        return {
            "set_id": "inputs",
            "outputs": {"y": ("float32", (ELEMENTS,))},
            "numbers": {"n": ("int32", n), "a": ("float32", FACTOR)},
            "timeout_s": TIMEOUT_S,
        }

    # -- device and compiler -------------------------------------------------------------------

    def test_device_describes_itself(self, executor: Any) -> None:
        device: DeviceInfo = executor.device
        assert device.backend == self.backend
        assert device.name
        assert device.kind in ("cpu", "gpu")
        assert device.max_work_group_size >= BLOCK
        assert min(device.max_block) >= 1
        assert executor.clock

    def test_compiled_code_comes_with_evidence(self, executor: Any) -> None:
        compiled = self.compile(executor, self.scale)
        assert compiled.ok
        assert compiled.binary
        assert compiled.features is not None
        assert compiled.features.counts
        assert compiled.resources.binary_bytes == len(compiled.binary)
        assert compiled.compile_s > 0
        assert compiled.forbidden == ""

    def test_code_hash_ignores_comments(self, executor: Any) -> None:
        plain = self.compile(executor, self.scale)
        commented = self.compile(executor, self.commented_scale)
        assert plain.code_hash
        assert plain.code_hash == commented.code_hash

    def test_compile_error_has_the_log(self, executor: Any) -> None:
        compiled = self.compile(executor, self.broken)
        assert not compiled.ok
        assert "no_such_name" in compiled.log
        assert compiled.binary == b""

    def test_missing_entry_is_a_compile_error(self, executor: Any) -> None:
        compiled = self.compile(executor, self.scale, "no_such_kernel")
        assert not compiled.ok
        assert "no_such_kernel" in compiled.log

    def test_state_between_calls_is_forbidden(self, executor: Any) -> None:
        if self.stateful is None:
            pytest.skip("the language has no writable program-scope variables")
        compiled = executor.compile(
            source=self.stateful,
            build_options=self.stateful_options,
            entries=("scale",),
            timeout_s=TIMEOUT_S,
        )
        assert not compiled.ok or compiled.forbidden

    # -- run -----------------------------------------------------------------------------------

    @pytest.mark.parametrize("poison", [0, 1])
    def test_run_computes(self, executor: Any, code_key: str, inputs: Any, poison: int) -> None:
        result = executor.run(
            code_key=code_key, program=self.program(), poison=poison, **self.request()
        )
        np.testing.assert_array_equal(result.outputs["y"], np.float32(FACTOR) * inputs)
        assert result.outputs["y"].dtype == np.float32
        assert result.unwritten == {"y": 0}
        assert result.changed_inputs == ()
        assert result.guard_violations == ()

    @pytest.mark.parametrize("poison", [0, 1])
    def test_run_counts_unwritten(
        self, executor: Any, code_key: str, inputs: Any, poison: int
    ) -> None:
        result = executor.run(
            code_key=code_key, program=self.program(), poison=poison, **self.request(n=900)
        )
        assert result.unwritten == {"y": ELEMENTS - 900}

    def test_one_past_the_end_is_seen(self, executor: Any, code_key: str, inputs: Any) -> None:
        request = self.request(n=ELEMENTS + 1)
        result = executor.run(code_key=code_key, program=self.program(), poison=0, **request)
        assert result.guard_violations == ("y",)
        again = executor.run(code_key=code_key, program=self.program(), poison=0, **self.request())
        assert again.guard_violations == ()
        np.testing.assert_array_equal(again.outputs["y"], np.float32(FACTOR) * inputs)

    def test_written_input_is_named(self, executor: Any, code_key: str, inputs: Any) -> None:
        swapped = self.program(args=("x", "x", "n", "a"))
        result = executor.run(code_key=code_key, program=swapped, poison=0, **self.request())
        assert result.changed_inputs == ("x",)
        assert result.unwritten == {"y": ELEMENTS}
        again = executor.run(code_key=code_key, program=self.program(), poison=0, **self.request())
        np.testing.assert_array_equal(again.outputs["y"], np.float32(FACTOR) * inputs)

    def test_launches_run_in_order_and_share_scratch(
        self, executor: Any, code_key: str, inputs: Any
    ) -> None:
        first = self.program(args=("x", "t", "n", "a")).launches
        second = self.program(args=("t", "y", "n", "a")).launches
        scratch = (Scratch(name="t", dtype="float32", elements=ELEMENTS),)
        program = WorkloadProgram(
            workload="suite", source=self.scale, launches=first + second, scratch=scratch
        )
        result = executor.run(code_key=code_key, program=program, poison=0, **self.request())
        expected = np.float32(FACTOR) * (np.float32(FACTOR) * inputs)
        np.testing.assert_array_equal(result.outputs["y"], expected)
        beyond = executor.run(
            code_key=code_key, program=program, poison=0, **self.request(n=ELEMENTS + 1)
        )
        assert set(beyond.guard_violations) == {"t", "y"}

    # -- launch limits -------------------------------------------------------------------------

    def test_launch_beyond_limits_is_refused(
        self, executor: Any, code_key: str, inputs: Any
    ) -> None:
        too_many = 2 * executor.device.max_work_group_size
        for program in (
            self.program(block=(too_many, 1, 1)),
            self.program(grid=(0, 1, 1)),
            self.program(args=("x", "y", "n")),
            self.program(args=("x", "y", "n", "nothing")),
            self.program(entry="no_such_kernel"),
        ):
            with pytest.raises(self.kernel_failure):
                executor.run(code_key=code_key, program=program, poison=0, **self.request())
        result = executor.run(code_key=code_key, program=self.program(), poison=0, **self.request())
        assert result.unwritten == {"y": 0}

    # -- measure -------------------------------------------------------------------------------

    def test_time_measures_every_call(self, executor: Any, code_key: str, inputs: Any) -> None:
        arm = self.timed_arm(code_key=code_key, program=self.program())
        result = executor.time(arms=[arm, arm], calls=[3, 5], check_arm=1, **self.request())
        assert [len(times) for times in result.arm_us] == [3, 5]
        assert all(t >= 0 for times in result.arm_us for t in times)
        np.testing.assert_array_equal(result.outputs["y"], np.float32(FACTOR) * inputs)
        assert result.unwritten == {"y": 0}
        assert result.changed_inputs == ()
        assert result.guard_violations == ()

    def test_more_work_takes_longer_on_the_clock(
        self, executor: Any, code_key: str, inputs: Any
    ) -> None:
        once, launches = self.program(), self.program().launches * 200
        many = WorkloadProgram(workload="suite", source=self.scale, launches=launches)
        arms = [self.timed_arm(code_key=code_key, program=p) for p in (once, many)]
        result = executor.time(
            arms=arms, calls=[5, 5], check_arm=None, flush_bytes=1 << 16, **self.request()
        )
        assert result.outputs is None
        assert min(result.arm_us[1]) > min(result.arm_us[0])

    def test_timed_violations_are_seen(self, executor: Any, code_key: str, inputs: Any) -> None:
        arm = self.timed_arm(code_key=code_key, program=self.program())
        request = self.request(n=ELEMENTS + 1)
        result = executor.time(arms=[arm], calls=[2], check_arm=0, **request)
        assert result.guard_violations == ("y",)
