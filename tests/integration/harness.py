"""The commands as processes, and what must hold of a run's folder whatever was killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

MODULES = {
    "kelites": "evo.cli",
    "kelites-worker": "workers.cli",
    "kelites-elites": "evo.elites_cli",
}


def argv(command: str, *arguments: str) -> list[str]:
    """The console script beside this interpreter, or its module where none was installed."""
    script = Path(sys.executable).with_name(command)
    start = [str(script)] if script.exists() else [sys.executable, "-m", MODULES[command]]
    return [*start, *arguments]


def run(
    command: str, *arguments: str, cwd: Path, timeout_s: float = 150.0, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv(command, *arguments),
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def start(command: str, *arguments: str, cwd: Path, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        argv(command, *arguments),
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def wait_until(condition: Callable[[], bool], *, timeout_s: float = 90.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def lines(run_dir: Path) -> list[dict[str, Any]]:
    """The whole lines of a journal that may be being written."""
    with suppress(FileNotFoundError):
        content = (run_dir / "journal.jsonl").read_bytes()
        return [json.loads(line) for line in content.split(b"\n")[:-1]]
    return []


def count(run_dir: Path, kind: str) -> int:
    needle = f'"kind":"{kind}"'.encode()
    with suppress(FileNotFoundError):
        return (run_dir / "journal.jsonl").read_bytes().count(needle)
    return 0


@dataclass(frozen=True)
class Audit:
    """What a journal says of itself."""

    evaluations: int
    asked: Counter[str]
    told: Counter[str]
    statuses: Counter[str]
    messages: tuple[str, ...]

    @property
    def each_answered_once(self) -> bool:
        return self.asked == self.told and set(self.told.values()) == {1}


def audit(run_dir: Path) -> Audit:
    events = lines(run_dir)
    assert [event["seq"] for event in events] == list(range(len(events)))
    asks = [event["data"] for event in events if event["kind"] == "ask"]
    tells = [event["data"] for event in events if event["kind"] == "tell"]
    return Audit(
        evaluations=sum(not ask["inherited"] for ask in asks),
        asked=Counter(ask["trial"]["id"] for ask in asks),
        told=Counter(tell["trial"] for tell in tells),
        statuses=Counter(tell["evaluation"]["status"] for tell in tells),
        messages=tuple(tell["evaluation"]["message"] for tell in tells),
    )


def elites(run_dir: Path) -> Any:
    """archive.json without job ids, which differ between runs on purpose."""

    def without_ids(node: Any) -> Any:
        if isinstance(node, dict):
            skip = ("job_id", "inherited_from")
            return {key: without_ids(value) for key, value in node.items() if key not in skip}
        return [without_ids(item) for item in node] if isinstance(node, list) else node

    return without_ids(json.loads((run_dir / "archive.json").read_text()))


class Daemon:
    """`kelites-worker serve` on PoCL; `restart` serves on the same port."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / "address"
        self.address = ""
        self._serve(0)

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def descendants(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        self._serve(self.port)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self.kill()

    def _serve(self, port: int) -> None:
        self._file.unlink(missing_ok=True)
        log = (self._folder / "daemon.log").open("a")
        self.process = subprocess.Popen(
            argv(
                *("kelites-worker", "serve", "--port", str(port)),
                *("--address-file", str(self._file), "--drain-grace", "5"),
            ),
            cwd=self._folder,
            # So that whatever a killed process leaves behind lies in the test's own folder.
            env=os.environ | {"TMPDIR": str(self._folder)},
            stdout=log,
            stderr=log,
        )
        log.close()
        wait_until(lambda: self._file.exists() or self.process.poll() is not None)
        assert self.process.poll() is None, (self._folder / "daemon.log").read_text()
        self.address = self._file.read_text().strip()


@contextmanager
def daemon(folder: Path) -> Iterator[Daemon]:
    folder.mkdir()
    running = Daemon(folder)
    try:
        yield running
    finally:
        running.stop()


def alive(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    found = []
    for item in processes:
        with suppress(psutil.NoSuchProcess):
            if item.is_running() and item.status() != psutil.STATUS_ZOMBIE:
                found.append(item)
    return found


def shared_memory() -> set[str]:
    """Names under /dev/shm that could be ours."""
    folder = Path("/dev/shm")
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    return {name for name in names if "kelites" in name or "pocl" in name.lower()}
