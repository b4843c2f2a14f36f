from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from evo.archives.grid import GridArchive
from evo.descriptor import cell_key
from evo.errors import ArchiveError, ConfigError, JournalError
from evo.evaluation import Evaluation, EvaluationStatus
from evo.genome import Candidate
from evo.job import Purpose
from evo.journal import Journal
from evo.serial import to_builtins
from evo.tracking.files import write_run_files
from evo.trial import Trial
from evo.views import (
    candidate_view,
    elites_table,
    failures_table,
    find_candidate,
    load_run,
    sort_elites,
)
from tests.evo.fakes import (
    DEVICE,
    demo_archive,
    make_candidate,
    make_confirm_rows,
    make_evaluation,
    make_run_info,
    make_summary,
)


def text_of(renderable: object, width: int = 200) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width).print(renderable)
    return stream.getvalue()


def record(
    journal: Journal,
    number: int,
    candidate: Candidate,
    evaluation: Evaluation,
    incumbent: Candidate | None = None,
) -> None:
    trial = Trial(
        id=f"t{number:06d}",
        purpose=Purpose.DUEL if incumbent else Purpose.SEARCH,
        candidate=candidate,
        incumbent=incumbent,
    )
    journal.append("ask", {"trial": to_builtins(trial), "source": "s", "inherited": False})
    journal.append(
        "tell",
        {"trial": trial.id, "evaluation": to_builtins(evaluation), "elapsed_s": 1.0},
    )


FAILED = make_candidate(900, note="target cell [1-2-3]", operator="mutate", parents=("c000003",))


def make_run(folder: Path, *, finished: bool) -> Path:
    """A run whose journal, archive and outcome agree; c000900 failed to compile."""
    archive = demo_archive()
    header = {"task": "softmax", "backend": "opencl", "device": to_builtins(DEVICE)}
    run_dir = folder / "run"
    grid = GridArchive(shape=(4, 4, 4))
    with Journal.create(run_dir, header) as journal:
        for number, elite in enumerate(archive):
            record(journal, number, elite.candidate, elite.evaluation)
            grid.add(elite.candidate, elite.evaluation, elite.cell)
        broken = Evaluation(
            job_id="x",
            status=EvaluationStatus.COMPILE_ERROR,
            message="1 error [see log]",
            log="kernel.cl:3: error: use of undeclared identifier 'q'\n",
        )
        record(journal, 900, FAILED, broken)
        first = next(iter(archive))
        worse = make_evaluation(status=EvaluationStatus.TIMEOUT)
        record(journal, 901, first.candidate, worse, incumbent=FAILED)
        journal.append("confirm", to_builtins(make_confirm_rows(list(archive)[:3])[2]))
    (run_dir / "archive.json").write_text(grid.to_json())
    if finished:
        write_run_files(make_run_info(run_dir), make_summary(archive))
    return run_dir


@pytest.mark.parametrize("finished", [True, False])
def test_the_list_shows_every_elite(tmp_path: Path, finished: bool) -> None:
    view = load_run(make_run(tmp_path, finished=finished))
    text = text_of(elites_table(view))
    for elite in demo_archive():
        assert f"{elite.candidate.id} │ {cell_key(elite.cell)}" in text
    assert "softmax on opencl: 22 elites, " + ("finished" if finished else "unfinished") in text
    assert "Measured on fake-cpu (CPU time). Candidates: ok 22, compile_error 1." in text
    assert "quote confirmed ones" in text
    assert ("budget of 300 evaluations used" in text) == finished


def test_confirmed_numbers_stand_beside_the_search_estimates(tmp_path: Path) -> None:
    text = text_of(elites_table(load_run(make_run(tmp_path, finished=True))))
    assert "failed: incorrect" in text
    assert "1.00x [0.97, 1.03] not shown faster" in text


def test_sorting_and_cutting(tmp_path: Path) -> None:
    view = load_run(make_run(tmp_path, finished=False))
    lows = [elite.objective.low for elite in sort_elites(view.elites)]
    assert lows == sorted(lows, reverse=True)
    cells = [elite.cell for elite in sort_elites(view.elites, "cell")]
    assert cells == sorted(cells)
    ids = [elite.candidate.id for elite in sort_elites(view.elites, "id")]
    assert ids == sorted(ids)
    templates = [e.candidate.genome.template for e in sort_elites(view.elites, "template")]
    assert templates == sorted(templates)
    assert elites_table(view, top=3).row_count == 3
    with pytest.raises(ConfigError, match="sort='age': allowed are speedup, cell, id, template"):
        elites_table(view, sort="age")


def test_showing_an_elite(tmp_path: Path) -> None:
    view = load_run(make_run(tmp_path, finished=True))
    best = find_candidate(view, "best")
    assert view.confirm[best].verdict == "faster"
    text = text_of(candidate_view(view, best))
    elite = view.elite(best)
    assert elite is not None
    for part in (
        best,
        cell_key(elite.cell),
        "parameters  wg=64 vec=",
        "search      ",
        "confirm     ",
        "9 checks passed",
        "wide*",
        "Lineage",
        "c000001",
        "__kernel void softmax",
    ):
        assert part in text


def test_showing_a_failure_explains_it(tmp_path: Path) -> None:
    view = load_run(make_run(tmp_path, finished=False))
    text = text_of(candidate_view(view, "c000900"))
    assert "compile_error: 1 error [see log]" in text
    assert "use of undeclared identifier 'q'" in text
    assert "mutate target cell [1-2-3]" in text
    assert "c000003" in text


def test_a_duel_does_not_hide_the_first_result(tmp_path: Path) -> None:
    view = load_run(make_run(tmp_path, finished=False))
    assert {evaluation.status.value for evaluation in view.evaluations.values()} == {
        "ok",
        "compile_error",
    }


def test_candidates_by_many_names(tmp_path: Path) -> None:
    view = load_run(make_run(tmp_path, finished=False))
    elite = view.elites[4]
    assert find_candidate(view, elite.candidate.id) == elite.candidate.id
    assert find_candidate(view, cell_key(elite.cell)) == elite.candidate.id
    assert find_candidate(view, "900") == "c000900"
    with pytest.raises(ConfigError, match="no candidate 'c1'; allowed are an id such as"):
        find_candidate(view, "c1")
    with pytest.raises(ConfigError, match="no candidate 'nobody'"):
        candidate_view(view, "nobody")


def test_failures_are_listed_and_filtered(tmp_path: Path) -> None:
    view = load_run(make_run(tmp_path, finished=False))
    text = text_of(failures_table(view))
    assert "c000900" in text
    assert "1 error [see log]" in text
    assert failures_table(view, [EvaluationStatus.TIMEOUT]).row_count == 0
    assert failures_table(view, [EvaluationStatus.COMPILE_ERROR], top=1).row_count == 1


def test_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run there"):
        load_run(tmp_path)
    run_dir = make_run(tmp_path, finished=False)
    (run_dir / "archive.json").write_text("{}")
    with pytest.raises(ArchiveError):
        load_run(run_dir)
    (run_dir / "journal.jsonl").write_text("nonsense\n")
    with pytest.raises(JournalError):
        load_run(run_dir)


def test_an_empty_run_has_no_best(tmp_path: Path) -> None:
    header = {"task": "softmax", "backend": "opencl"}
    Journal.create(tmp_path / "run", header).close()
    view = load_run(tmp_path / "run")
    assert "0 elites, unfinished" in text_of(elites_table(view))
    with pytest.raises(ConfigError, match="the archive is empty"):
        find_candidate(view, "best")
