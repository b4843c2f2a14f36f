"""Kills controller, daemon and executor at seeded random points and checks that nothing is lost.

Every row of results.csv is one search with one kill in it. See README.md.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from evo.rebuild import rebuild_archive

HERE = Path(__file__).resolve().parent
PATIENCE_S = 300.0
TARGETS = ("simulated controller", "controller", "executor", "daemon")
COMMON = ("tracking=none", "confirm.top=0", "display=none", "hydra.run.dir=run")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One search with one kill.

    Attributes:
        target: What was killed.
        kill: Number of the kill.
        told_before: Results on record when it was killed.
        evaluations: Evaluations on record at the end.
        lost: Recorded events that were gone or changed at the end.
        unanswered: Asks without exactly one answer at the end.
        blamed: Candidates said to have crashed or hung.
        rebuilt_equal: The archive rebuilt from the journal is archive.json.
        same_as_uninterrupted: archive.json is that of a run without a kill; simulated only.
        left_behind: Processes of killed parents that were still there ten seconds later.
        wall_s: Wall time.
    """

    target: str
    kill: int
    told_before: int
    evaluations: int
    lost: int
    unanswered: int
    blamed: int
    rebuilt_equal: bool
    same_as_uninterrupted: str
    left_behind: int
    wall_s: float

    def sound(self, budget: int) -> bool:
        """Whether nothing was lost."""
        clean = not (self.lost or self.unanswered or self.blamed or self.left_behind)
        same = self.same_as_uninterrupted != "no"
        return clean and same and self.rebuilt_equal and self.evaluations == budget


class Daemon:
    """A worker daemon that can be killed and served again on the same port."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._address_file = folder / "address"
        self.address = ""
        self.serve()

    def serve(self) -> None:
        """Starts it and waits until it answers, on the former port if it had one."""
        self._address_file.unlink(missing_ok=True)
        port = self.address.rpartition(":")[2] or "0"
        command = [sys.executable, "-m", "workers.cli", "serve", "--port", port]
        with (self._folder / "daemon.log").open("a") as log:
            self.process = subprocess.Popen(
                [*command, "--address-file", str(self._address_file)],
                cwd=self._folder,
                env=os.environ | {"TMPDIR": str(self._folder)},
                stdout=log,
                stderr=log,
            )
        wait_until(self._address_file.exists)
        self.address = self._address_file.read_text().strip()

    def children(self) -> list[psutil.Process]:
        """Its processes."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def executors(self) -> list[psutil.Process]:
        """Those that compile and run kernels."""
        return [item for item in self.children() if "workers.child" in command_line(item)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10, help="kills per target")
    parser.add_argument("--evaluations", type=int, default=25, help="budget of each search")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="kill this target only")
    parser.add_argument("--out", type=Path, default=HERE / "results.csv")
    arguments = parser.parse_args()
    print(
        f"{platform.system()} {platform.machine()}, {processor()}, {psutil.cpu_count()} cores; "
        f"Python {platform.python_version()}, kernel-elites {version('kernel-elites')}, "
        f"pyopencl {version('pyopencl')}",
        flush=True,
    )
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "daemon").mkdir()
        daemon = Daemon(folder / "daemon")
        try:
            for target in [arguments.only] if arguments.only else TARGETS:
                rng = random.Random(f"{arguments.seed} {target}")
                for kill in range(arguments.kills):
                    place = folder / f"{target.replace(' ', '-')}-{kill}"
                    place.mkdir()
                    row = experiment(target, kill, place, daemon, arguments.evaluations, rng)
                    rows.append(row)
                    print(row, flush=True)
        finally:
            daemon.process.terminate()
            daemon.process.wait()
    with arguments.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)
    sound = Counter(row.target for row in rows if row.sound(arguments.evaluations))
    print(f"\n{'killed':<22}searches  evaluations  nothing lost")
    for target in dict.fromkeys(row.target for row in rows):
        mine = [row for row in rows if row.target == target]
        total = sum(row.evaluations for row in mine)
        print(f"{target:<22}{len(mine):>8}{total:>13}{sound[target]:>14}")
    return 0 if sum(sound.values()) == len(rows) else 1


def experiment(
    target: str, kill: int, place: Path, daemon: Daemon, budget: int, rng: random.Random
) -> Row:
    """Runs one search, kills once, resumes if need be, and looks at what is left."""
    begun = time.monotonic()
    simulated = target.startswith("simulated")
    workers = ["workers=simulated", "workers.delay_s=0.05"]
    if not simulated:
        workers = [f"workers=[{daemon.address}]", "evaluation=quick"]
    arguments = [*COMMON, *workers, f"budget.evaluations={budget}", f"seed={kill}"]
    point, delay_s = rng.randrange(budget), rng.uniform(0.0, 1.0)
    downtime_s = rng.uniform(0.0, 3.0)
    run_dir = place / "run"
    search = start(arguments, place)
    wait_until(lambda: len(told(run_dir)) >= point or search.poll() is not None)
    if not simulated:
        time.sleep(delay_s)  # to be anywhere in an evaluation, or in the start of a search
    orphans: list[psutil.Process] = []
    if target.endswith("controller"):
        orphans = psutil.Process(search.pid).children(recursive=True)
        search.kill()
        search.wait()
        before = lines(run_dir)
        search = start(["resume=run"] if before else arguments, place)
    elif target == "executor":
        before = lines(run_dir)
        rng.choice(daemon.executors()).kill()
    else:
        orphans = daemon.children()
        before = lines(run_dir)
        daemon.process.kill()
        daemon.process.wait()
        time.sleep(downtime_s)
        daemon.serve()
    code = search.wait(PATIENCE_S)
    if code == 2 and not before:
        # Killed before the search had begun: it refuses to start without a worker. Once more.
        code = start(arguments, place).wait(PATIENCE_S)
    if code != 0:
        log = (place / "search.log").read_text()
        raise SystemExit(f"{target} {kill}: the search ended with {code}:\n{log}")
    same = ""
    if simulated:
        whole = [*arguments, "workers.delay_s=0", "run_dir=whole"]
        start(whole, place).wait(PATIENCE_S)
        same = "yes" if elites(run_dir) == elites(place / "whole") else "no"
    deadline = time.monotonic() + 10.0
    while any(is_alive(item) for item in orphans) and time.monotonic() < deadline:
        time.sleep(0.1)
    after = lines(run_dir)
    asks = [event["data"] for event in after if event["kind"] == "ask"]
    answers = Counter(event["data"]["trial"] for event in after if event["kind"] == "tell")
    statuses = Counter(
        event["data"]["evaluation"]["status"] for event in after if event["kind"] == "tell"
    )
    rebuilt = json.loads(rebuild_archive(run_dir).to_json())
    return Row(
        target=target,
        kill=kill,
        told_before=sum(event["kind"] == "tell" for event in before),
        evaluations=sum(not ask["inherited"] for ask in asks),
        lost=sum(old != new for old, new in zip(before, after, strict=False))
        + max(0, len(before) - len(after)),
        unanswered=sum(answers[ask["trial"]["id"]] != 1 for ask in asks),
        blamed=statuses["runtime_error"] + statuses["timeout"],
        rebuilt_equal=rebuilt == json.loads((run_dir / "archive.json").read_text()),
        same_as_uninterrupted=same,
        left_behind=sum(is_alive(item) for item in orphans),
        wall_s=round(time.monotonic() - begun, 1),
    )


def start(arguments: list[str], place: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "evo.cli", *arguments]
    with (place / "search.log").open("a") as log:
        return subprocess.Popen(command, cwd=place, stdout=log, stderr=log)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit("gave up waiting")
        time.sleep(0.01)


def lines(run_dir: Path) -> list[dict[str, Any]]:
    """The whole lines of a journal that may be being written."""
    path = run_dir / "journal.jsonl"
    content = path.read_bytes() if path.exists() else b""
    return [json.loads(line) for line in content.split(b"\n")[:-1]]


def told(run_dir: Path) -> list[dict[str, Any]]:
    return [event for event in lines(run_dir) if event["kind"] == "tell"]


def elites(run_dir: Path) -> str:
    """archive.json without job ids, which differ between runs on purpose."""
    archive = json.loads((run_dir / "archive.json").read_text())
    for elite in archive["elites"]:
        for name in ("job_id", "inherited_from"):
            elite["evaluation"].pop(name)
    return json.dumps(archive, sort_keys=True)


def command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # it has ended meanwhile
        return ""


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def processor() -> str:
    """The processor's model as the system names it, or its architecture."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.machine()
    names = [row.partition(":")[2].strip() for row in text.splitlines() if "model name" in row]
    return names[0] if names else platform.machine()


if __name__ == "__main__":
    sys.exit(main())
