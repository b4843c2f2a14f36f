"""What a run is about: everything settled, and refused if need be, before the first candidate."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from evo.budget import Budget
from evo.components import build
from evo.descriptor import DEFAULT_DESCRIPTOR
from evo.errors import ConfigError
from evo.job import DeviceInfo, EvaluationSettings
from evo.journal import Event, Journal
from evo.run_folder import claim, snapshot
from evo.run_settings import BackendSettings, ConfirmSettings, SearchSettings
from evo.serial import from_builtins, to_builtins
from evo.task import Task, load_task
from evo.template import Template, load_templates
from evo.tracking.base import RunInfo

_PACKAGES = ("kernel-elites", "numpy", "torch", "pyopencl", "deap", "mlflow", "hydra-core")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A run's settings, loaded and validated.

    Attributes:
        config: The composed configuration.
        run_dir: Where the run lives.
        seed: Seed of everything random.
        task: What to compute.
        backend: Backend name.
        templates: Templates searched.
        known_templates: All the task has for the backend.
        budget: When to stop.
        search: How candidates are proposed.
        limits: How hard each candidate is looked at.
        confirm: How the best are measured at the end.
    """

    config: DictConfig
    run_dir: Path
    seed: int
    task: Task
    backend: str
    templates: tuple[Template, ...]
    known_templates: tuple[Template, ...]
    budget: Budget
    search: SearchSettings
    limits: EvaluationSettings
    confirm: ConfirmSettings


def make_plan(config: DictConfig, run_dir: Path, *, begun: bool = False) -> Plan:
    """Loads and validates all that needs no device.

    Args:
        config: Composed configuration, or a saved one.
        run_dir: Where the run lives.
        begun: It lives there already: it goes on with the templates it started with, whatever has
            been edited since.

    Raises:
        ConfigError: If a setting is out of range or names something that is not there.
        TaskError: If the task is unknown or malformed.
        TemplateError: If a template is malformed.
    """
    seed = config.seed
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise ConfigError(f"seed={seed!r}: a whole number >= 0 is allowed")
    backend: BackendSettings = build(config.backend)
    task = load_task(str(snapshot(run_dir) if begun else config.task))
    known = load_templates(task, backend.name)
    names = [template.name for template in known]
    wanted = _names("templates", config.templates, names)
    given = config.evaluation.families
    families = _names("evaluation.families", given, task.all_families) or task.families
    return Plan(
        config=config,
        run_dir=run_dir,
        seed=seed,
        task=task,
        backend=backend.name,
        templates=tuple(item for item in known if wanted is None or item.name in wanted),
        known_templates=known,
        budget=build(config.budget),
        search=build(config.search),
        limits=build(config.evaluation, families=tuple(families)),
        confirm=build(config.confirm),
    )


def _names(key: str, wanted: Any, allowed: Sequence[str]) -> tuple[str, ...] | None:
    """Reads a list of names, or a single one; null is None."""
    if wanted is None:
        return None
    names = tuple(str(item) for item in ([wanted] if isinstance(wanted, str) else wanted))
    for name in names:
        if name not in allowed:
            raise ConfigError(f"{key}: no {name!r} (allowed: {', '.join(allowed)})")
    if not names:
        raise ConfigError(
            f"{key}=[]: name at least one, or null for all (allowed: {', '.join(allowed)})"
        )
    return names


def begin(plan: Plan, device: DeviceInfo) -> tuple[Journal, Mapping[str, Any]]:
    """Claims the run directory and stores what a resume needs.

    Returns:
        The journal and its header.

    Raises:
        ConfigError: If the run directory is not empty.
        JournalError: If it cannot be written.
    """
    header = {
        "run_id": secrets.token_hex(8),
        "task": plan.task.name,
        "backend": plan.backend,
        "seed": plan.seed,
        "task_hash": plan.task.bundle.task_hash,
        "templates": {template.name: template.hash for template in plan.known_templates},
        "descriptor": DEFAULT_DESCRIPTOR.schema,
        "device": to_builtins(device),
        "versions": _versions(),
        "git_sha": _git_sha(),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }
    config_yaml = OmegaConf.to_yaml(plan.config, resolve=True)
    journal = claim(plan.run_dir, header=header, config_yaml=config_yaml, task=plan.task)
    return journal, header


def reopen(plan: Plan) -> tuple[Journal, Mapping[str, Any], list[Event]]:
    """Opens the journal of a run that is to go on.

    Returns:
        The journal, its header and all events.

    Raises:
        JournalError: If it is damaged, or another controller holds it.
        ConfigError: If the run's copy of its task is not the one it was measured with.
    """
    journal, events = Journal.open(plan.run_dir)
    header = events[0].data
    if header["task_hash"] != plan.task.bundle.task_hash:
        journal.close()
        raise ConfigError(
            f"{plan.run_dir}: the run's copy of task {plan.task.name} was changed after the run "
            "began; restore it or start a new run"
        )
    return journal, header, events


def resumed_device(header: Mapping[str, Any], found: DeviceInfo) -> DeviceInfo:
    """Returns the device a resumed run started on, which its constraints and programs refer to.

    Raises:
        ConfigError: If the worker now drives another device.
    """
    first = from_builtins(header["device"], DeviceInfo)
    if (first.backend, first.name) != (found.backend, found.name):
        raise ConfigError(
            f"the run was measured on {first.name!r} ({first.backend}) and cannot go on on "
            f"{found.name!r} ({found.backend}): times would not compare"
        )
    return first


def run_info(plan: Plan, device: DeviceInfo, header: Mapping[str, Any]) -> RunInfo:
    """Describes a run for trackers and the report."""
    container = OmegaConf.to_container(plan.config, resolve=True)
    return RunInfo(
        run_dir=plan.run_dir,
        run_name=f"{plan.task.name}-{plan.backend}-{plan.run_dir.resolve().name}",
        task=plan.task.name,
        backend=plan.backend,
        device=device,
        seed=plan.seed,
        config=_flat(container),
        resolved_yaml=OmegaConf.to_yaml(plan.config, resolve=True),
        git_sha=header.get("git_sha", ""),
        command=header.get("command", ""),
        versions=header.get("versions", {}),
        description=plan.task.description,
    )


def _flat(node: Any, prefix: str = "") -> dict[str, object]:
    if not isinstance(node, dict):
        return {prefix: node}
    flat: dict[str, object] = {}
    for key, value in node.items():
        flat |= _flat(value, f"{prefix}.{key}" if prefix else str(key))
    return flat


def _versions() -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _git_sha() -> str:
    """Commit of the engine's own working tree; empty for an installed copy."""
    command = ["git", "-C", str(Path(__file__).resolve().parents[1]), "rev-parse", "HEAD"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""
