"""What a run is about: everything settled, and refused if need be, before the first candidate."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from evo import settings
from evo.budget import Budget
from evo.descriptor import DEFAULT_DESCRIPTOR
from evo.errors import ConfigError
from evo.job import DeviceInfo, EvaluationSettings
from evo.journal import Event, Journal
from evo.serial import from_builtins, to_builtins
from evo.task import Task, load_task
from evo.template import Template, load_templates
from evo.tracking.base import RunInfo

TASK_SNAPSHOT = "task"
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
        budget: When to stop.
        limits: How hard each candidate is looked at.
    """

    config: DictConfig
    run_dir: Path
    seed: int
    task: Task
    backend: str
    templates: tuple[Template, ...]
    budget: Budget
    limits: EvaluationSettings


def make_plan(config: DictConfig, run_dir: Path) -> Plan:
    """Loads and validates all that needs no device.

    Raises:
        ConfigError: If a setting is out of range or names something that is not there.
        TaskError: If the task is unknown or malformed.
        TemplateError: If a template is malformed.
    """
    seed = config.seed
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise ConfigError(f"seed={seed!r}: a whole number >= 0 is allowed")
    snapshot = run_dir / TASK_SNAPSHOT
    # A resumed run searches the templates it started with, whatever has been edited since.
    name = next(snapshot.iterdir()) if snapshot.is_dir() else config.task
    task = load_task(str(name))
    backend = str(config.backend.name)
    templates = load_templates(task, backend)
    if not templates:
        raise ConfigError(f"task {task.name} has no template for backend {backend}")
    families = config.evaluation.families or task.families
    return Plan(
        config=config,
        run_dir=run_dir,
        seed=seed,
        task=task,
        backend=backend,
        templates=_chosen(templates, config.templates),
        budget=settings.build(config.budget),
        limits=settings.build(config.evaluation, families=tuple(families)),
    )


def _chosen(templates: Sequence[Template], wanted: Sequence[str] | None) -> tuple[Template, ...]:
    if wanted is None:
        return tuple(templates)
    allowed = [template.name for template in templates]
    names = [wanted] if isinstance(wanted, str) else list(wanted)
    for name in names:
        if name not in allowed:
            raise ConfigError(f"templates: no {name!r} (allowed: {', '.join(allowed)})")
    return tuple(template for template in templates if template.name in names)


def begin(plan: Plan, device: DeviceInfo) -> tuple[Journal, Mapping[str, Any]]:
    """Opens the journal of a new run and stores what a resume needs.

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
        "templates": {template.name: template.hash for template in plan.templates},
        "descriptor": DEFAULT_DESCRIPTOR.schema,
        "device": to_builtins(device),
        "versions": _versions(),
        "git_sha": _git_sha(),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }
    journal = Journal.create(plan.run_dir, header)
    resolved = OmegaConf.create(OmegaConf.to_container(plan.config, resolve=True))
    OmegaConf.save(resolved, plan.run_dir / settings.CONFIG_FILE)
    if plan.task.folder is not None:
        shutil.copytree(
            plan.task.folder,
            plan.run_dir / TASK_SNAPSHOT / plan.task.name,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    return journal, header


def reopen(plan: Plan) -> tuple[Journal, Mapping[str, Any], list[Event]]:
    """Opens the journal of a run that is to go on.

    Returns:
        The journal, its header and all events.

    Raises:
        JournalError: If it is damaged, or another controller holds it.
    """
    journal, events = Journal.open(plan.run_dir)
    return journal, events[0].data, events


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
