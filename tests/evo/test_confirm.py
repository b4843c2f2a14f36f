from __future__ import annotations

import asyncio
import io
import math
from pathlib import Path

import pytest
from rich.console import Console

from evo.confirm import (
    ConfirmRow,
    confirm,
    confirm_caption,
    confirm_lines,
    confirm_table,
    load_rows,
    save_rows,
    select_for_confirm,
)
from evo.errors import ProtocolError, WorkerUnavailable
from evo.evaluation import Evaluation, EvaluationStatus
from evo.genome import Candidate
from evo.job import DeviceInfo, EvaluationRequest, Program, Purpose, TaskBundle
from tests.evo.fakes import (
    DEVICE,
    FakeArchive,
    demo_archive,
    make_elite,
    make_evaluation,
    make_timing,
)


def make_request(candidate: Candidate) -> EvaluationRequest:
    program = Program(backend="opencl", template=candidate.id, workloads=())
    return EvaluationRequest(
        job_id=f"confirm-{candidate.id}",
        task_hash="t",
        candidate=program,
        baseline=program,
        purpose=Purpose.CONFIRM,
    )


class FakeEvaluator:
    """Answers by candidate id; counts how many are in flight; None means no worker is left."""

    def __init__(self, answers: dict[str, Evaluation | None], slots: int = 1) -> None:
        self.answers = answers
        self.slots = slots
        self.most_in_flight = 0
        self._in_flight = 0
        self.order: list[str] = []

    @property
    def device(self) -> DeviceInfo:
        return DEVICE

    async def start(self, bundle: TaskBundle) -> None:
        pass

    async def evaluate(self, request: EvaluationRequest) -> Evaluation:
        assert request.purpose is Purpose.CONFIRM
        self._in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self._in_flight)
        # Later requests end first, so that order must be kept on purpose.
        await asyncio.sleep(0.001 * (len(self.answers) - len(self.order)))
        self._in_flight -= 1
        self.order.append(request.candidate.template)
        answer = self.answers[request.candidate.template]
        if answer is None:
            raise WorkerUnavailable("no worker answers")
        return answer

    async def close(self) -> None:
        pass


def run_confirm(
    answers: list[Evaluation | None], slots: int = 1
) -> tuple[list[ConfirmRow], FakeEvaluator, list[ConfirmRow]]:
    elites = [make_elite(number, (0, 0, number)) for number in range(len(answers))]
    evaluator = FakeEvaluator(
        {elite.candidate.id: answer for elite, answer in zip(elites, answers, strict=True)}, slots
    )
    arrived: list[ConfirmRow] = []
    rows = asyncio.run(
        confirm(
            elites,
            evaluator,
            lambda elite: make_request(elite.candidate),
            confirm_workloads={"wide"},
            on_row=arrived.append,
        )
    )
    return rows, evaluator, arrived


def timed(*blocks: float, keep_blocks: bool = False) -> Evaluation:
    timing = make_timing(blocks, workloads=("square", "wide"), processes=3, keep_blocks=keep_blocks)
    return make_evaluation(timing=timing)


FASTER = (0.69, 0.70, 0.68, 0.70)
EVEN = (-0.02, 0.03, -0.01, 0.01)
SLOWER = (-0.5, -0.52, -0.48, -0.51)


def text_of(rows: list[ConfirmRow], width: int = 160) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width).print(confirm_table(rows))
    return stream.getvalue()


def test_selection_takes_the_surest_not_the_luckiest() -> None:
    lucky = make_elite(1, (0, 0, 1), (0.2, 1.6, 0.1, 1.9))
    sure = make_elite(2, (0, 0, 2), (0.8, 0.81, 0.79, 0.8))
    slow = make_elite(3, (0, 0, 3), (-0.8, -0.81, -0.79, -0.8))
    archive = FakeArchive([lucky, sure, slow])
    assert lucky.objective.mean > sure.objective.mean
    assert [elite.candidate.id for elite in select_for_confirm(archive, 2)] == [
        "c000002",
        "c000001",
    ]
    assert len(select_for_confirm(demo_archive(), 1000)) == len(demo_archive())
    assert select_for_confirm(archive, 0) == []


def test_verdict_follows_the_interval() -> None:
    rows, _, arrived = run_confirm([timed(*FASTER), timed(*EVEN), timed(*SLOWER)])
    assert [row.verdict for row in rows] == ["faster", "not shown faster", "slower"]
    assert [row.confirmed for row in rows] == [True, False, False]
    assert rows[0].interval is not None
    assert math.exp(rows[0].interval.mean) == pytest.approx(2.0, rel=0.01)
    assert rows[0].interval.low < rows[0].interval.mean < rows[0].interval.high
    assert arrived == rows


def test_failed_confirm_is_shown_not_hidden() -> None:
    failed = make_evaluation(status=EvaluationStatus.INCORRECT, message="wrong on workload wide")
    rows, _, _ = run_confirm([failed, timed(*FASTER)])
    assert rows[0].verdict == "failed: incorrect"
    assert rows[0].interval is None
    text = text_of(rows)
    assert "failed: incorrect: wrong on workload wide" in text
    assert "c000000 cell 0-0-0: failed: incorrect: wrong on workload wide" in confirm_lines(rows)


def test_lost_workers_keep_what_was_confirmed() -> None:
    rows, _, _ = run_confirm([timed(*FASTER), None])
    assert rows[0].confirmed
    assert rows[1].status is EvaluationStatus.INFRA_ERROR
    assert rows[1].message == "no worker answers"


@pytest.mark.parametrize("slots", [1, 3])
def test_slots_are_used_and_order_is_kept(slots: int) -> None:
    rows, evaluator, _ = run_confirm([timed(*FASTER)] * 6, slots)
    assert evaluator.most_in_flight == slots
    assert [row.candidate.id for row in rows] == [f"c{number:06d}" for number in range(6)]


def test_compile_only_answer_is_no_confirmation() -> None:
    unmeasured = Evaluation(job_id="j", status=EvaluationStatus.OK, measured=False)
    rows, _, _ = run_confirm([unmeasured])
    assert not rows[0].confirmed
    assert rows[0].message == "no timing came back"


def test_table_names_device_samples_and_unseen_workloads() -> None:
    rows, _, _ = run_confirm([timed(*FASTER, keep_blocks=True), timed(*EVEN)])
    assert [item.confirm_only for item in rows[0].workloads] == [False, True]
    caption = confirm_caption(rows)
    assert "fake-cpu (CPU time), clock fake-clock" in caption
    assert "4 interleaved blocks from 3 fresh process(es) per elite" in caption
    assert "* = workload never used in the search" in caption
    text = text_of(rows)
    for part in ("wide*", "square", "2.00x [1.9", "100 us", "faster", "not shown faster"):
        assert part in text
    plain = "\n".join(confirm_lines(rows))
    assert "wide*:" in plain
    assert "1.00x [0.97, 1.0" in plain


def test_nothing_timed_says_so() -> None:
    assert confirm_caption([]) == "No elite could be timed."
    assert "No elite could be timed." in text_of([])


def test_rows_survive_the_file(tmp_path: Path) -> None:
    failed = make_evaluation(status=EvaluationStatus.TIMEOUT, message="m")
    rows, _, _ = run_confirm([timed(*FASTER, keep_blocks=True), failed])
    save_rows(tmp_path / "confirm.json", rows)
    assert load_rows(tmp_path / "confirm.json") == rows
    assert [path.name for path in tmp_path.iterdir()] == ["confirm.json"]
    (tmp_path / "confirm.json").write_text("[{}]")
    with pytest.raises(ProtocolError):
        load_rows(tmp_path / "confirm.json")
