"""From the command line to a configuration: shorthand, one-line errors, resumable settings."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from evo import settings
from evo.budget import Budget
from evo.components import build
from evo.errors import ConfigError
from evo.job import EvaluationSettings


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (
            ["workers=[a:1,b:2]"],
            ["workers=remote", "workers.addresses=['a:1','b:2']"],
        ),
        (["workers=box:50051"], ["workers=remote", "workers.addresses=['box:50051']"]),
        (["workers=[[::1]:7]"], ["workers=remote", "workers.addresses=['[::1]:7']"]),
        (["workers=[box]"], ["workers=remote", "workers.addresses=['box']"]),
        (["workers=[]"], ["workers=remote", "workers.addresses=[]"]),
        (["workers=local"], ["workers=local"]),
        (["run_dir=out/x"], ["hydra.run.dir=out/x"]),
        (["task=softmax", "seed=1"], ["task=softmax", "seed=1"]),
    ],
)
def test_shorthand_is_expanded(args, expected):
    assert settings.expand_shorthand(args) == expected


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("tsk=softmax", ["'tsk'", "task"]),
        ("budget.evaluatons=3", ["budget.evaluatons", "budget.evaluations"]),
        ("backend=foo", ["backend=foo", "opencl"]),
        ("experiment=foo", ["experiment=foo", "demo", "smoke"]),
        ("+surprise=1", ["surprise", "budget"]),
        ("budget.evaluations=[", ["["]),
        ("tracking=mlflo", ["tracking=mlflo", "mlflow", "none"]),
        ("experiment=smoke,foo", ["experiment=foo"]),
    ],
)
def test_unknown_keys_and_options_are_one_line_and_say_what_is_allowed(override, parts):
    with pytest.raises(ConfigError) as caught:
        settings.check_overrides([override])
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


def test_every_preset_composes_and_its_plain_components_build():
    for preset in ("smoke", "demo"):
        config = settings.compose_config([f"experiment={preset}"])
        assert isinstance(build(config.budget), Budget)
        limits = build(config.evaluation, families=("normal",))
        assert isinstance(limits, EvaluationSettings)


def test_a_setting_a_component_does_not_know_is_a_config_error():
    config = settings.compose_config(["+budget.weeks=3"])
    with pytest.raises(ConfigError, match="weeks"):
        build(config.budget)


@pytest.mark.parametrize("value", ["0", "-5", "abc", "1.5", "true"])
def test_a_budget_that_is_no_positive_number_is_refused(value):
    config = settings.compose_config([f"budget.evaluations={value}"])
    with pytest.raises(ConfigError, match="budget.evaluations"):
        build(config.budget)


def test_a_budget_without_any_limit_is_refused():
    with pytest.raises(ConfigError, match="never ends"):
        Budget(evaluations=None)


@pytest.fixture
def run_dir(tmp_path):
    config = settings.compose_config(["task=softmax", "run_dir=somewhere"])
    config.run_dir = str(tmp_path)
    OmegaConf.save(config, tmp_path / settings.CONFIG_FILE)
    return tmp_path


def test_a_resume_may_raise_the_budget_and_move_to_other_workers(run_dir):
    config = settings.saved_config(
        run_dir, ["budget.evaluations=77", "workers=remote", "workers.addresses=[h:1]"]
    )
    assert config.budget.evaluations == 77
    assert config.workers.addresses == ["h:1"]


@pytest.mark.parametrize("override", ["seed=4", "task=matmul", "search.initial_samples=2"])
def test_a_resume_may_not_change_the_search(run_dir, override):
    with pytest.raises(ConfigError, match="cannot change"):
        settings.saved_config(run_dir, [override])


def test_a_resume_with_an_unknown_key_is_refused(run_dir):
    with pytest.raises(ConfigError, match="budget.foo"):
        settings.saved_config(run_dir, ["budget.foo=4"])


def test_resuming_where_no_run_is_says_so(tmp_path):
    with pytest.raises(ConfigError, match="no run there"):
        settings.saved_config(tmp_path, [])
