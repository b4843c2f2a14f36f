"""A run's folder: claimed whole or not at all.

The journal's header is the commit point: what a resume needs besides it (settings, a copy of the
task) is there before. A start that fails or is killed earlier leaves nothing that a second try in
the same folder would trip over.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evo.errors import ConfigError
from evo.journal import JOURNAL_FILE, Journal
from evo.task import Task

CONFIG_FILE = "config.yaml"
TASK_SNAPSHOT = "task"

_MARKER = ".kelites-starting"
_PARTS = (CONFIG_FILE, TASK_SNAPSHOT, JOURNAL_FILE)


def require_new(run_dir: Path) -> None:
    """Refuses a folder that holds something, before anything costly is started.

    Hidden entries, `*.log` files and the remains of a start that was killed do not count.

    Raises:
        ConfigError: If the folder is not empty or cannot be read.
    """
    _refuse_content(run_dir, remains=(run_dir / _MARKER).exists())


def _refuse_content(run_dir: Path, *, remains: bool) -> None:
    try:
        names = sorted(entry.name for entry in run_dir.iterdir()) if run_dir.is_dir() else []
    except OSError as error:
        raise ConfigError(f"run directory {run_dir}: {error.strerror}") from None
    content = [n for n in names if not n.startswith(".") and not n.endswith(".log")]
    if remains and not _has_begun(run_dir):
        content = [name for name in content if name not in _PARTS]
    if content:
        hint = f", or continue it with resume={run_dir}" if JOURNAL_FILE in content else ""
        raise ConfigError(
            f"run directory {run_dir} is not empty (it has {content[0]}): choose a new one{hint}"
        )


def claim(run_dir: Path, *, header: Mapping[str, Any], config_yaml: str, task: Task) -> Journal:
    """Makes a new or empty folder a run's.

    Raises:
        ConfigError: If it is not empty, cannot be written, or is being claimed by another process.
        JournalError: If the journal's header cannot be written.
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        with _starting(run_dir) as remains:
            _refuse_content(run_dir, remains=remains)
            try:
                release(run_dir)
                (run_dir / CONFIG_FILE).write_text(config_yaml, encoding="utf-8")
                _copy_task(task, run_dir / TASK_SNAPSHOT)
                return Journal.create(run_dir, dict(header), beside=(CONFIG_FILE, TASK_SNAPSHOT))
            except BaseException:
                release(run_dir)
                raise
    except OSError as error:
        raise ConfigError(f"run directory {run_dir}: {error.strerror}") from None


def release(run_dir: Path) -> None:
    """Removes what `claim` made, for a run that ends before its first candidate."""
    for name in (CONFIG_FILE, JOURNAL_FILE):
        (run_dir / name).unlink(missing_ok=True)
    shutil.rmtree(run_dir / TASK_SNAPSHOT, ignore_errors=True)


def snapshot(run_dir: Path) -> Path:
    """Returns the folder with a run's own copy of its task.

    Raises:
        ConfigError: If it is missing.
    """
    folder = next((run_dir / TASK_SNAPSHOT).glob("*/"), None)
    if folder is None:
        raise ConfigError(f"{run_dir}: the run's copy of its task ({TASK_SNAPSHOT}/) is missing")
    return folder


def _has_begun(run_dir: Path) -> bool:
    try:
        return b"\n" in (run_dir / JOURNAL_FILE).read_bytes()
    except OSError:
        return False


@contextmanager
def _starting(run_dir: Path) -> Iterator[bool]:
    """Marks a claim in progress; the lock goes with the process, the mark stays if it is killed.

    Yields:
        Whether the mark was there before: an earlier claim was killed.
    """
    path = run_dir / _MARKER
    remains = path.exists()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"run directory {run_dir}: another run starts in it") from None
        try:
            yield remains
        except BaseException:
            if not remains:
                path.unlink()
            raise
        path.unlink()
    finally:
        os.close(descriptor)


def _copy_task(task: Task, target: Path) -> None:
    """Copies what a task is loaded from, and nothing else that lies in its folder."""
    if task.folder is None:
        return
    copy = target / task.name
    copy.mkdir(parents=True)
    for name, text in task.bundle.files.items():
        # What was loaded, and is searched, even if somebody has edited the file since.
        (copy / name).write_text(text, encoding="utf-8", newline="")
    for file in sorted(task.folder.glob("*.j2")):
        shutil.copy(file, copy / file.name)
