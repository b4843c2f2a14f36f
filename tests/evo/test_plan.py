"""What a resume refuses before anything is evaluated."""

from __future__ import annotations

import pytest

from evo.errors import ConfigError
from evo.journal import Journal
from evo.plan import begin, make_plan, reopen
from evo.run_folder import snapshot
from evo.settings import compose_config
from evo.testing.simulated import SimulatedEvaluator


@pytest.fixture
def begun(tmp_path):
    config = compose_config(["workers=simulated", "tracking=none", f"run_dir={tmp_path / 'run'}"])
    plan = make_plan(config, tmp_path / "run")
    journal, header = begin(plan, SimulatedEvaluator().device)
    journal.close()
    return config, plan.run_dir, header


def test_reopening_gives_what_the_run_began_with(begun):
    config, run_dir, header = begun
    journal, again, events = reopen(make_plan(config, run_dir, begun=True))
    journal.close()
    assert again["run_id"] == header["run_id"]
    assert [event.kind for event in events] == ["header"]


def test_edited_copy_of_the_task_is_refused(begun):
    config, run_dir, _ = begun
    file = snapshot(run_dir) / "task.yaml"
    edited = file.read_text(encoding="utf-8").replace("max_rel: ", "max_rel: 1")
    file.write_text(edited, encoding="utf-8")
    with pytest.raises(ConfigError, match="copy of task softmax was changed"):
        reopen(make_plan(config, run_dir, begun=True))
    Journal.open(run_dir)[0].close()  # the lock was given back
