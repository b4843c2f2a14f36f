from __future__ import annotations

import signal

import pytest

from evo.evaluation import EvaluationStatus
from workers.execution import ExecutorCrash, ExecutorTimeout, KernelFailure
from workers.measure.verdict import Rejected, kernel_faults


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (ExecutorTimeout("no result within 1 s"), EvaluationStatus.TIMEOUT),
        (ExecutorCrash("crashed", log="x", signal=signal.SIGSEGV), EvaluationStatus.RUNTIME_ERROR),
        (ExecutorCrash("exited", log="", signal=None), EvaluationStatus.RUNTIME_ERROR),
        (KernelFailure("launch refused"), EvaluationStatus.RUNTIME_ERROR),
    ],
)
def test_what_a_kernel_does_to_the_executor_is_its_own_fault(fault, status):
    with (
        pytest.raises(Rejected, match="square") as caught,
        kernel_faults("workload square"),
    ):
        raise fault
    assert caught.value.status is status


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_an_executor_ended_from_outside_is_no_kernels_fault(number):
    fault = ExecutorCrash("the executor crashed", log="", signal=number)
    with pytest.raises(ExecutorCrash) as caught, kernel_faults("workload square"):
        raise fault
    assert caught.value is fault
