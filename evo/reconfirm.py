"""`kelites-elites confirm`: measures the elites of a finished run once more."""

from __future__ import annotations

import asyncio
from pathlib import Path

from omegaconf import DictConfig

from evo import settings
from evo.archives.grid import GridArchive
from evo.components import build
from evo.confirm import ConfirmRow, confirm, save_rows, select_for_confirm
from evo.errors import ConfigError
from evo.evaluator import Evaluator
from evo.journal import read_events
from evo.plan import Plan, make_plan, resumed_device
from evo.requests import RequestBuilder


def reconfirm(run_dir: Path, *, top: int, overrides: list[str]) -> list[ConfirmRow]:
    """Confirms the best elites of a run again and replaces its confirm.json.

    Args:
        run_dir: A run's directory.
        top: How many elites, best first.
        overrides: Settings as for a resume, e.g. "workers=[host:port]".

    Raises:
        EvoError: If there is no such run, no elite, no worker, or another device.
    """
    config = settings.saved_config(run_dir, settings.expand_shorthand(overrides))
    plan = make_plan(config, run_dir, begun=True)
    archive_file = run_dir / "archive.json"
    if not archive_file.is_file():
        raise ConfigError(f"{run_dir}: no archive.json yet; finish it: kelites resume={run_dir}")
    archive = GridArchive.from_json(archive_file.read_text(encoding="utf-8"))
    if not len(archive):
        raise ConfigError(f"{run_dir}: the archive is empty, there is nothing to confirm")
    return asyncio.run(_confirm(plan, config, archive, top))


async def _confirm(
    plan: Plan, config: DictConfig, archive: GridArchive, top: int
) -> list[ConfirmRow]:
    header = read_events(plan.run_dir / "journal.jsonl")[0].data
    evaluator: Evaluator = build(config.workers)
    try:
        await evaluator.start(plan.task.bundle)
        requests = RequestBuilder(
            task=plan.task,
            templates=plan.known_templates,
            backend=plan.backend,
            device=resumed_device(header, evaluator.device),
            settings=plan.limits,
            run_id=header["run_id"],
        )
        limits = plan.confirm.limits(plan.limits)
        rows = await confirm(
            select_for_confirm(archive, top),
            evaluator,
            lambda elite: requests.for_confirm(elite.candidate, limits),
            confirm_workloads=[item.name for item in plan.task.workloads if item.confirm],
        )
    finally:
        await evaluator.close()
    save_rows(plan.run_dir / "confirm.json", rows)
    return rows
