from __future__ import annotations

import dataclasses
import itertools
import math
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from evo.descriptor import DEFAULT_DESCRIPTOR, cell_key
from evo.errors import TaskError, WorkerError
from evo.evaluation import Evaluation, EvaluationStatus
from evo.job import EvaluationRequest, EvaluationSettings, Program, Purpose
from evo.serial import from_json, to_json
from evo.task import make_bundle
from workers import corpus, laboratory
from workers.execution import KernelFailure
from workers.measure.verdict import HACK_MESSAGE
from workers.service import EvaluationService

SETTINGS = EvaluationSettings(run_timeout_s=5.0, min_blocks=2, max_blocks=3)
HONEST = corpus.HONEST_CASE
FASTER = corpus.HONEST_CASES[1]
SLOWER = corpus.repeated(64)
HASH = corpus.bundle().task_hash
numbers = itertools.count()


@pytest.fixture(scope="module")
def worker() -> Iterator[EvaluationService]:
    worker = EvaluationService(backend="opencl", worker_name="here")
    worker.put_task(corpus.bundle())
    yield worker
    worker.close()


def request(case: corpus.Case = HONEST, **changes: object) -> EvaluationRequest:
    fields: dict[str, object] = {
        "job_id": f"job-{next(numbers)}",
        "task_hash": HASH,
        "candidate": case.program(),
        "baseline": HONEST.program(),
        "settings": SETTINGS,
        "scope": f"scope-{next(numbers)}",
    }
    return EvaluationRequest(**(fields | changes))  # type: ignore[arg-type]


def evaluate(worker: EvaluationService, case: corpus.Case, **changes: object) -> Evaluation:
    return worker.evaluate(request(case, **changes))


def mean(result: Evaluation) -> float:
    assert result.timing is not None, result.message
    return float(np.mean(result.timing.log_speedups))


def test_start_describes_the_device_with_its_ceilings(worker: EvaluationService) -> None:
    device = worker.start()
    assert device.backend == "opencl"
    assert device.bandwidth_gbs > 0.1
    assert device.peak_gflops > 0.1
    assert worker.start() is device


def test_an_evaluation_in_full(worker: EvaluationService) -> None:
    stages: list[str] = []
    asked = request(FASTER)
    result = worker.evaluate(asked, stages.append)
    assert stages == ["validate", "compile", "check", "time", "done"]
    assert (result.status, result.stage, result.message) == (EvaluationStatus.OK, "done", "")
    assert result.job_id == asked.job_id
    assert result.correctness is not None
    assert result.correctness.passed
    assert result.correctness.deterministic
    assert result.correctness.max_rel is not None
    assert 0 < result.correctness.max_rel < 1e-5
    assert result.timing is not None
    # 2 workloads, 3 families, and the output of one timed call in every block.
    assert result.correctness.checks == 6 + len(result.timing.log_speedups)
    assert result.timing is not None
    assert [item.workload for item in result.timing.workloads] == ["square", "prime"]
    assert all(item.sol_fraction for item in result.timing.workloads)
    assert all(item.bound for item in result.timing.workloads)
    assert result.features is not None
    assert result.features.counts
    assert len(result.code_hash) == 16
    assert result.compile_s > 0
    assert result.total_s >= result.compile_s
    assert result.input_seed is not None
    environment = result.environment
    assert (environment.backend, environment.worker) == ("opencl", "here")
    assert environment.device
    assert environment.device_kind in ("cpu", "gpu")
    assert from_json(to_json(result), Evaluation) == result


def test_more_work_takes_longer(worker: EvaluationService) -> None:
    assert mean(evaluate(worker, SLOWER)) < math.log(1 / 8)


def test_equal_machine_code_inherits_within_a_scope(worker: EvaluationService) -> None:
    first = evaluate(worker, FASTER, scope="run-1")
    renamed = dataclasses.replace(
        FASTER, source="// another comment\n" + FASTER.source.replace("even", "first")
    )
    stages: list[str] = []
    second = worker.evaluate(request(renamed, scope="run-1"), stages.append)
    assert second.inherited_from == first.job_id
    assert second.job_id != first.job_id
    assert second.timing == first.timing
    assert stages == ["validate", "compile", "done"]
    third = evaluate(worker, renamed, scope="run-1")
    assert third.inherited_from == first.job_id
    elsewhere = evaluate(worker, FASTER, scope="run-2")
    assert elsewhere.inherited_from == ""


def test_another_block_size_is_measured_by_itself(worker: EvaluationService) -> None:
    evaluate(worker, HONEST, scope="run-3")
    wider = evaluate(worker, dataclasses.replace(HONEST, block=32), scope="run-3")
    assert wider.inherited_from == ""


def test_a_job_id_gives_its_result_again(worker: EvaluationService) -> None:
    asked = request(FASTER)
    assert worker.evaluate(asked) is worker.evaluate(asked)


def test_a_job_id_with_other_content_is_another_job(worker: EvaluationService) -> None:
    asked = request(FASTER)
    first = worker.evaluate(asked)
    other = dataclasses.replace(asked, candidate=SLOWER.program())
    second = worker.evaluate(other)
    assert second.code_hash != first.code_hash
    assert worker.evaluate(other) is second


def test_race_bounds_do_not_make_another_job(worker: EvaluationService) -> None:
    asked = request(FASTER)
    moved = dataclasses.replace(
        asked, settings=dataclasses.replace(SETTINGS, race_cells={"0-0-0": 0.1})
    )
    assert worker.evaluate(asked) is worker.evaluate(moved)


def test_compile_only_never_times(worker: EvaluationService) -> None:
    result = evaluate(worker, HONEST, purpose=Purpose.COMPILE_ONLY)
    assert (result.status, result.measured) == (EvaluationStatus.OK, False)
    assert result.timing is None
    assert result.correctness is None
    assert result.features is not None


def test_duel_times_three_arms(worker: EvaluationService) -> None:
    result = evaluate(
        worker, FASTER, purpose=Purpose.DUEL, incumbent=SLOWER.program(), scope="run-4"
    )
    assert result.timing is not None
    timing = result.timing
    assert len(timing.rival_log_ratios) == len(timing.rival_log_speedups)
    assert len(timing.rival_log_ratios) == len(timing.log_speedups)
    assert np.mean(timing.rival_log_ratios) > math.log(8)
    assert np.mean(timing.rival_log_speedups) < -math.log(8)
    assert result.inherited_from == ""


def test_confirm_uses_all_workloads_and_fresh_processes(worker: EvaluationService) -> None:
    generation = worker._lab.executor.generation
    settings = dataclasses.replace(SETTINGS, processes=2, max_blocks=6)
    result = evaluate(worker, FASTER, purpose=Purpose.CONFIRM, settings=settings)
    assert result.timing is not None, result.message
    assert [item.workload for item in result.timing.workloads] == ["square", "prime", "tall"]
    assert result.timing.processes == 2
    assert len(result.timing.log_speedups) == 6
    assert worker._lab.executor.generation == generation + 2
    assert result.correctness is not None
    # 3 workloads by 6 families, then by the search's 3, and every block of every workload.
    assert result.correctness.checks == 3 * 6 + 3 * 3 + 3 * 6


def test_racing_ends_early(worker: EvaluationService) -> None:
    features = evaluate(worker, SLOWER, purpose=Purpose.COMPILE_ONLY).features
    assert features is not None
    cell = cell_key(DEFAULT_DESCRIPTOR.cell(features))
    settings = dataclasses.replace(SETTINGS, race_cells={cell: 0.5}, min_blocks=12, max_blocks=12)
    result = evaluate(worker, SLOWER, settings=settings)
    assert result.timing is not None
    assert result.timing.raced_out
    assert len(result.timing.log_speedups) < 12
    other = dataclasses.replace(settings, race_cells={"9-9-9": 0.5}, min_blocks=2, max_blocks=2)
    result = evaluate(worker, SLOWER, settings=other)
    assert result.timing is not None
    assert not result.timing.raced_out


def test_an_unknown_task_is_refused(worker: EvaluationService) -> None:
    assert worker.has_task(HASH)
    assert not worker.has_task("feed")
    with pytest.raises(TaskError, match="task feed is not known here"):
        evaluate(worker, HONEST, task_hash="feed")


def test_an_unsound_task_is_refused(worker: EvaluationService) -> None:
    files = dict(corpus.bundle().files)
    files["task.yaml"] = files["task.yaml"].replace("1.0e-5", "0.9")
    bundle = make_bundle("center_rows", files)
    with pytest.raises(TaskError, match="refused: mutant"):
        worker.put_task(bundle)
    assert not worker.has_task(bundle.task_hash)


def broken(case: str) -> Program:
    return next(item for item in corpus.CHEATS if item.name == case).program()


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("wrong_sign", "the baseline is incorrect: output y wrong"),
        ("syntax_error", "the baseline is compile_error: "),
        ("group_too_large", "the baseline is invalid: "),
    ],
)
def test_a_bad_baseline_is_not_the_candidates_fault(
    worker: EvaluationService, case: str, reason: str
) -> None:
    asked = request(HONEST, baseline=broken(case))
    result = worker.evaluate(asked)
    assert result.status is EvaluationStatus.INFRA_ERROR
    assert result.message.startswith(reason)
    assert worker.evaluate(asked) is not result  # tried again, not remembered


def test_a_baseline_wrong_on_a_confirm_workload_is_found(worker: EvaluationService) -> None:
    source = HONEST.source.replace("in[i] - mean", "in[i] - (rows == 131 ? 0.0f : mean)")
    baseline = dataclasses.replace(HONEST, source=source).program()
    assert evaluate(worker, FASTER, baseline=baseline).status is EvaluationStatus.OK
    result = evaluate(worker, FASTER, baseline=baseline, purpose=Purpose.CONFIRM)
    assert result.status is EvaluationStatus.INFRA_ERROR
    assert result.message.startswith("the baseline is incorrect: output y wrong (workload tall")


def test_impossible_speed_is_rejected_without_saying_why(
    worker: EvaluationService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    device = worker.start()
    slow = dataclasses.replace(device, peak_gflops=1e-6)
    monkeypatch.setattr(worker._lab, "device", slow)
    # The second look at the ceilings finds the same.
    monkeypatch.setattr(laboratory, "measure_ceilings", lambda *_: slow)
    result = evaluate(worker, FASTER)
    assert (result.status, result.message) == (EvaluationStatus.HACK, HACK_MESSAGE)
    assert "faster than the device can be on workload square" in caplog.text


def test_ceilings_measured_too_low_are_measured_again(
    worker: EvaluationService, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = dataclasses.replace(worker.start(), peak_gflops=1e-6)
    monkeypatch.setattr(worker._lab, "device", slow)
    assert evaluate(worker, FASTER).status is EvaluationStatus.OK


@pytest.mark.hostile
def test_a_duel_that_the_incumbent_spoils_is_not_the_challengers_fault(
    worker: EvaluationService,
) -> None:
    hangs = next(case for case in corpus.CHEATS if case.name == "infinite_loop")
    limits = dataclasses.replace(SETTINGS, run_timeout_s=2.0)
    duel = {"purpose": Purpose.DUEL, "settings": limits}
    spoilt = evaluate(worker, HONEST, incumbent=hangs.program(), **duel)
    assert spoilt.status is EvaluationStatus.INFRA_ERROR
    assert "incumbent" in spoilt.message
    blamed = evaluate(worker, hangs, incumbent=HONEST.program(), **duel)
    assert blamed.status is EvaluationStatus.TIMEOUT
    assert evaluate(worker, HONEST).status is EvaluationStatus.OK


def test_inputs_are_drawn_anew_after_a_while(
    worker: EvaluationService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(laboratory, "SEED_LIFETIME", 2)
    seeds = [evaluate(worker, HONEST).input_seed for _ in range(4)]
    assert len(set(seeds)) >= 2


def test_the_executor_is_replaced_after_a_while_to_free_the_drivers_memory(
    worker: EvaluationService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(laboratory, "SEED_LIFETIME", 2)
    pids = []
    for number in range(5):
        assert evaluate(worker, corpus.repeated(2 + number)).status is EvaluationStatus.OK
        pids.append(worker._lab.executor.pid)
    assert len(set(pids)) >= 2


def test_confirm_never_reuses_inputs(worker: EvaluationService) -> None:
    settings = dataclasses.replace(SETTINGS, processes=1, max_blocks=2)
    seeds = {
        evaluate(worker, HONEST, purpose=Purpose.CONFIRM, settings=settings).input_seed
        for _ in range(2)
    }
    assert len(seeds) == 2


def test_non_determinism_is_refused_unless_the_task_allows_it() -> None:
    # Depends on what scratch holds, which is filled with another pattern each time.
    source = HONEST.source.replace("const int cols)", "const int cols, __global float* work)")
    source = source.replace(
        "out[i] = in[i] - mean", "out[i] = in[i] - mean + (isnan(work[0]) ? 1e-6f : 0.0f)"
    )
    case = dataclasses.replace(HONEST, source=source, scratch_floats=4)

    def program() -> Program:
        made = case.program()
        items = []
        for item in made.workloads:
            launch = dataclasses.replace(item.launches[0], args=(*item.launches[0].args, "work"))
            items.append(dataclasses.replace(item, launches=(launch,)))
        return dataclasses.replace(made, workloads=tuple(items))

    files = dict(corpus.bundle().files)
    files["task.yaml"] += "deterministic: false\n"
    lenient = make_bundle("center_rows", files)
    worker = EvaluationService(backend="opencl")
    try:
        worker.put_task(corpus.bundle())
        worker.put_task(lenient)
        strict = worker.evaluate(request(HONEST, candidate=program()))
        allowed = worker.evaluate(request(HONEST, candidate=program(), task_hash=lenient.task_hash))
    finally:
        worker.close()
    for result in (strict, allowed):
        assert result.correctness is not None
        assert not result.correctness.deterministic
    assert strict.status is EvaluationStatus.INCORRECT
    assert "different bits" in strict.message
    assert allowed.status is EvaluationStatus.OK


def test_cancel_stops_the_running_job_only(worker: EvaluationService) -> None:
    endless = next(case for case in corpus.CHEATS if case.name == "infinite_loop")
    settings = dataclasses.replace(SETTINGS, run_timeout_s=120.0)
    asked = request(endless, settings=settings)
    checking = threading.Event()
    results: list[Evaluation] = []

    def on_stage(stage: str) -> None:
        if stage == "check":
            checking.set()

    thread = threading.Thread(target=lambda: results.append(worker.evaluate(asked, on_stage)))
    thread.start()
    assert checking.wait(60)
    worker.cancel("some other job")
    worker.cancel(asked.job_id)
    thread.join(60)
    assert not thread.is_alive()
    assert (results[0].status, results[0].message) == (EvaluationStatus.INFRA_ERROR, "cancelled")
    assert evaluate(worker, HONEST).status is EvaluationStatus.OK


def test_a_job_cancelled_before_it_begins_does_not_run(worker: EvaluationService) -> None:
    asked = request(HONEST)
    worker.cancel(asked.job_id)
    assert worker.evaluate(asked).message == "cancelled"
    assert worker.evaluate(asked).status is EvaluationStatus.OK


def test_killing_the_executor_between_jobs_costs_nothing(worker: EvaluationService) -> None:
    evaluate(worker, HONEST)
    worker._lab.executor.kill()
    assert evaluate(worker, HONEST).status is EvaluationStatus.OK


def test_a_device_that_takes_no_inputs_is_not_the_kernels_fault(
    worker: EvaluationService, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise KernelFailure("out of device memory")

    with monkeypatch.context() as patch:
        patch.setattr(worker._lab.executor, "upload", refuse)
        worker._lab.forget()
        result = evaluate(worker, HONEST)
    assert (result.status, result.message) == (
        EvaluationStatus.INFRA_ERROR,
        "out of device memory",
    )
    assert evaluate(worker, HONEST).status is EvaluationStatus.OK


def test_a_bug_in_the_worker_is_an_infra_error(
    worker: EvaluationService, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(laboratory, "measure", lambda *_, **__: 1 / 0)
        result = evaluate(worker, HONEST)
    assert result.status is EvaluationStatus.INFRA_ERROR
    assert result.message == "internal error of the worker: ZeroDivisionError"
    assert evaluate(worker, HONEST).status is EvaluationStatus.OK


def test_closed_services_say_so() -> None:
    worker = EvaluationService(backend="opencl")
    worker.put_task(corpus.bundle())
    worker.close()
    worker.close()
    with pytest.raises(WorkerError, match="closed"):
        worker.start()
    result = evaluate(worker, HONEST)
    assert result.status is EvaluationStatus.INFRA_ERROR
