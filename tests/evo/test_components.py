"""Settings are checked against the component's own signature before it is built."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from evo.bandit import Bandit
from evo.budget import Budget
from evo.components import build
from evo.errors import ConfigError
from evo.job import EvaluationSettings
from evo.run_settings import ConfirmSettings, SearchSettings

BUDGET = {"_target_": "evo.budget.Budget", "evaluations": 3}


def test_mapping_or_node_is_built_with_its_settings():
    assert build(BUDGET) == build(OmegaConf.create(BUDGET)) == Budget(evaluations=3)


def test_extra_arguments_take_a_settings_place():
    node = {"_target_": "evo.job.EvaluationSettings", "families": None, "min_blocks": 2}
    built = build(node, families=("normal",))
    assert built == EvaluationSettings(families=("normal",), min_blocks=2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weeks": 3}, r"unknown key here.weeks; allowed: here.evaluations, here.seconds"),
        ({"evaluations": "many"}, r"here.evaluations='many': expected int \| null, got str"),
        ({"evaluations": 0}, "budget.evaluations=0"),
        ({"_target_": "evo.budget.Nothing"}, "here._target_='evo.budget.Nothing' cannot be loaded"),
        ({"_target_": "evo.no.such"}, "here._target_='evo.no.such' cannot be loaded"),
        ({"_target_": "evo.__version__"}, "nothing that can be built"),
        ({"seconds": "???"}, "has no value"),
    ],
)
def test_wrong_nodes_are_one_line(changes, message):
    with pytest.raises(ConfigError, match=message) as caught:
        build({**BUDGET, **changes}, where="here")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("node", [None, [], 3, {"evaluations": 3}])
def test_what_is_no_component_is_refused(node):
    with pytest.raises(ConfigError, match=r"here=.*an option of this group"):
        build(node, where="here")


def test_a_components_own_refusal_names_the_key():
    node = OmegaConf.create({"evaluation": {"_target_": "evo.job.EvaluationSettings"}})
    node.evaluation.min_blocks = 0
    with pytest.raises(ConfigError, match=r"^evaluation\.min_blocks=0: a whole number"):
        build(node.evaluation)


def test_nested_components_may_be_built_later():
    node = {
        "_target_": "evo.run_settings.SearchSettings",
        "_recursive_": False,
        **{"initial_samples": 1, "duels": True, "duel_share": 0.5, "step": 2},
        "bandit": {"_target_": "evo.bandit.Bandit"},
    }
    search = build(node)
    assert isinstance(search, SearchSettings)
    assert isinstance(build(search.bandit, names=["a"]), Bandit)


def test_confirm_limits_fit_together_whatever_the_searchs_are():
    confirm = ConfirmSettings(top=1, processes=2, max_blocks=1, target_rel_interval=0.5)
    limits = confirm.limits(EvaluationSettings(min_blocks=4, max_blocks=8, block_us=7.0))
    assert (limits.min_blocks, limits.max_blocks, limits.processes) == (1, 1, 2)
    assert limits.block_us == 7.0
