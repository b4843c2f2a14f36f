"""The archive of a run, from its journal alone."""

from __future__ import annotations

from pathlib import Path

from evo import settings
from evo.app import make_search
from evo.archives.grid import GridArchive
from evo.components import build
from evo.errors import JournalError
from evo.evaluation import Evaluation
from evo.job import DeviceInfo
from evo.journal import read_events
from evo.plan import make_plan
from evo.search import Trial
from evo.serial import from_builtins


def rebuild_archive(run_dir: Path) -> GridArchive:
    """Replays a run's asks and tells; needs no worker and changes nothing.

    Raises:
        ConfigError: If the folder holds no run.
        JournalError: If the journal is damaged or does not replay.
    """
    plan = make_plan(settings.saved_config(run_dir, []), run_dir, begun=True)
    events = read_events(run_dir)
    archive: GridArchive = build(plan.config.archive)
    device = from_builtins(events[0].data["device"], DeviceInfo)
    search = make_search(plan, device, archive)
    for event in events:
        if event.kind == "ask" and search.ask() != from_builtins(event.data["trial"], Trial):
            raise JournalError(f"{run_dir}: event {event.seq} is not what the search proposes now")
        if event.kind == "tell":
            evaluation = from_builtins(event.data["evaluation"], Evaluation)
            search.tell(event.data["trial"], evaluation)
    return archive
