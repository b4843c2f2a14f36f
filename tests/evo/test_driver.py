"""The loop between search and evaluator: journal first, budget kept, replay exact."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from evo.archives.grid import GridArchive
from evo.bandit import Bandit
from evo.budget import Budget
from evo.descriptor import DEFAULT_DESCRIPTOR
from evo.driver import Driver
from evo.errors import JournalError, WorkerLost
from evo.evaluation import EvaluationStatus
from evo.job import EvaluationSettings, Purpose
from evo.journal import Journal, read_events
from evo.requests import RequestBuilder
from evo.search import Search, TemplateEntry
from evo.task import load_task
from evo.template import load_templates
from evo.testing.simulated import SimulatedEvaluator
from operators.crossover import Crossover
from operators.local import Local
from operators.mutate import Mutate
from operators.sample import Sample
from operators.switch import Switch


class Rig:
    """A driver with everything around it, on the simulated evaluator."""

    def __init__(self, folder, *, seed=0, evaluations=60, journal=None, evaluator=None, **budget):
        self.evaluator = evaluator or SimulatedEvaluator()
        task = load_task("softmax")
        templates = load_templates(task, "opencl")
        self.archive = GridArchive()
        operators = [Sample(), Mutate(), Crossover(), Local(), Switch()]
        device = self.evaluator.device
        self.search = Search(
            templates=[
                TemplateEntry(name=t.name, hash=t.hash, space=t.space(task, device))
                for t in templates
            ],
            archive=self.archive,
            operators=operators,
            bandit=Bandit(names=[operator.name for operator in operators]),
            descriptor=DEFAULT_DESCRIPTOR,
            rng=np.random.default_rng(seed),
        )
        self.journal = journal or Journal.create(folder, {"run_id": "r"})
        self.told = []
        self.driver = Driver(
            search=self.search,
            archive=self.archive,
            requests=RequestBuilder(
                task=task,
                templates=templates,
                backend="opencl",
                device=device,
                settings=EvaluationSettings(),
                run_id="r",
            ),
            evaluator=self.evaluator,
            journal=self.journal,
            budget=Budget(evaluations=evaluations, **budget),
            listeners=[lambda trial, *rest: self.told.append(trial.id)],
        )

    def run(self):
        return asyncio.run(self.driver.run())


def journal_file(folder):
    return folder / "journal.jsonl"


def kinds(folder):
    return [event.kind for event in read_events(journal_file(folder))]


class StopsAfter(SimulatedEvaluator):
    """Loses its last worker after some evaluations, as a crash would."""

    def __init__(self, evaluations, **options):
        super().__init__(**options)
        self.left = evaluations

    async def evaluate(self, request):
        if self.left == 0:
            raise WorkerLost("the only worker died")
        self.left -= 1
        return await super().evaluate(request)


def test_budget_of_evaluations_is_kept_exactly(tmp_path):
    rig = Rig(tmp_path / "run", evaluations=40)
    assert "40 evaluations" in rig.run()
    assert rig.driver.progress.evaluations == 40
    assert rig.driver.progress.told == 40 + rig.driver.progress.inherited
    assert kinds(tmp_path / "run").count("tell") == rig.driver.progress.told
    assert len(rig.told) == rig.driver.progress.told


def test_stagnation_ends_the_run_before_the_budget(tmp_path):
    rig = Rig(tmp_path / "run", evaluations=2000, stagnation=12)
    assert "no new or improved cell" in rig.run()
    assert rig.driver.progress.evaluations < 2000


def test_seconds_end_the_run(tmp_path):
    rig = Rig(
        tmp_path / "run",
        evaluations=100_000,
        seconds=0.2,
        evaluator=SimulatedEvaluator(delay_s=0.01),
    )
    assert "0.2 seconds" in rig.run()


def test_every_ask_is_on_disk_before_it_is_evaluated_and_every_result_before_it_counts(tmp_path):
    folder = tmp_path / "run"
    seen = []

    class Watching(SimulatedEvaluator):
        async def evaluate(self, request):
            seen.append(kinds(folder)[-1])
            return await super().evaluate(request)

    rig = Rig(folder, evaluations=10, evaluator=Watching())
    rig.driver._listeners = (lambda *_: seen.append(kinds(folder)[-1]),)
    rig.run()
    assert seen
    assert set(seen) == {"ask", "tell"}
    assert seen[0::2] == ["ask"] * len(seen[0::2])
    assert seen[1::2] == ["tell"] * len(seen[1::2])


def test_one_slot_and_one_seed_give_one_sequence(tmp_path):
    def sequence(name, seed):
        rig = Rig(tmp_path / name, seed=seed)
        rig.run()
        events = read_events(journal_file(tmp_path / name))
        return [e.data["trial"] for e in events if e.kind == "ask"], rig.archive.to_json()

    first, again, other = sequence("a", 1), sequence("b", 1), sequence("c", 2)
    assert first == again
    assert first != other


@pytest.mark.parametrize("slots", [1, 4])
def test_a_lost_worker_ends_the_run_and_a_resume_loses_nothing(tmp_path, slots):
    folder = tmp_path / "run"
    broken = Rig(folder, evaluator=StopsAfter(23, slots=slots))
    with pytest.raises(WorkerLost):
        broken.run()
    recorded = kinds(folder).count("tell")
    assert recorded >= 20
    broken.journal.close()

    journal, events = Journal.open(folder)
    resumed = Rig(folder, journal=journal, evaluator=SimulatedEvaluator(slots=slots))
    resumed.driver.replay(events)
    assert resumed.driver.progress.told == recorded
    resumed.run()
    assert resumed.driver.progress.evaluations == 60
    assert kinds(folder).count("ask") == kinds(folder).count("tell")
    if slots == 1:
        whole = Rig(tmp_path / "whole")
        whole.run()
        assert resumed.archive.to_json() == whole.archive.to_json()


def test_replaying_a_finished_run_gives_an_equal_archive_and_asks_nothing(tmp_path):
    folder = tmp_path / "run"
    first = Rig(folder)
    first.run()
    first.journal.close()
    before = journal_file(folder).read_bytes()
    journal, events = Journal.open(folder)
    again = Rig(folder, journal=journal)
    again.driver.replay(events)
    again.run()
    assert again.archive.to_json() == first.archive.to_json()
    assert journal_file(folder).read_bytes() == before


def test_a_journal_of_another_seed_is_refused(tmp_path):
    folder = tmp_path / "run"
    first = Rig(folder, seed=1)
    first.run()
    first.journal.close()
    journal, events = Journal.open(folder)
    other = Rig(folder, seed=2, journal=journal)
    with pytest.raises(JournalError, match=r"code, templates or settings changed"):
        other.driver.replay(events)


def test_stop_leaves_a_run_that_can_go_on(tmp_path):
    folder = tmp_path / "run"
    rig = Rig(folder, evaluator=SimulatedEvaluator(delay_s=0.02))

    async def interrupted():
        running = asyncio.ensure_future(rig.driver.run())
        await asyncio.sleep(0.25)
        rig.driver.stop("interrupted")
        return await running

    assert asyncio.run(interrupted()) == "interrupted"
    assert rig.driver.interrupted
    rig.journal.close()
    journal, events = Journal.open(folder)
    resumed = Rig(folder, journal=journal)
    resumed.driver.replay(events)
    resumed.run()
    whole = Rig(tmp_path / "whole")
    whole.run()
    assert resumed.archive.to_json() == whole.archive.to_json()


def test_duels_are_fought_and_counted(tmp_path):
    rig = Rig(tmp_path / "run", evaluations=150, evaluator=SimulatedEvaluator(noise=0.3))
    rig.run()
    asked = [
        event.data["trial"]["purpose"]
        for event in read_events(journal_file(tmp_path / "run"))
        if event.kind == "ask"
    ]
    assert asked.count(Purpose.DUEL.value) == rig.driver.progress.duels > 0


def test_identical_source_is_evaluated_once(tmp_path):
    requests = []

    class Counting(SimulatedEvaluator):
        async def evaluate(self, request):
            if request.purpose is Purpose.SEARCH:
                requests.append(request)
            return await super().evaluate(request)

    rig = Rig(tmp_path / "run", evaluations=150, evaluator=Counting())
    key = rig.driver._requests.source_key
    rig.run()
    keys = [key(request.candidate) for request in requests]
    assert len(keys) == len(set(keys))


def test_stop_is_heard_while_results_are_inherited_in_a_row(tmp_path, monkeypatch):
    rig = Rig(tmp_path / "run", evaluations=1000)
    # All programs are one: after the first, everything is inherited and nothing is waited for.
    monkeypatch.setattr(rig.driver._requests, "source_key", lambda program: "same")

    async def interrupted():
        running = asyncio.ensure_future(rig.driver.run())
        while rig.driver.progress.inherited < 5:
            await asyncio.sleep(0)
        rig.driver.stop("interrupted")
        return await running

    assert asyncio.run(interrupted()) == "interrupted"
    assert rig.driver.progress.inherited < 20
    tells = [e for e in read_events(journal_file(tmp_path / "run")) if e.kind == "tell"]
    inherited = [e.data["evaluation"] for e in tells if e.data["evaluation"]["inherited_from"]]
    assert {item["total_s"] for item in inherited} == {0.0}


def test_a_program_that_does_not_render_is_invalid_and_costs_nothing(tmp_path, monkeypatch):
    from evo.errors import TemplateError

    rig = Rig(tmp_path / "run", evaluations=20)
    real = rig.driver._requests.program

    def program(genome):
        if genome.template == "opencl_online":
            raise TemplateError("templates/softmax/opencl_online.cl.j2:3: broken")
        return real(genome)

    monkeypatch.setattr(rig.driver._requests, "program", program)
    rig.run()
    statuses = rig.driver.progress.statuses
    assert statuses[EvaluationStatus.INVALID.value] > 0
    assert rig.driver.progress.evaluations == 20
