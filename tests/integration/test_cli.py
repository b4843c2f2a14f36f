"""The commands as a user types them; wrong ones end with one line that says what is allowed."""

from __future__ import annotations

import json
import shutil
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import pytest
import yaml

from evo import cli, elites_cli
from evo.journal import Journal
from tests.integration import harness

QUIET = ("tracking=none", "confirm.top=0", "display=none", "run_dir=run")
SIMULATED = ("workers=simulated", *QUIET, "budget.evaluations=3")


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


Command = Callable[..., Ended]


@pytest.fixture
def kelites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Command:
    """The command in this process, which saves seconds; `harness.run` starts a real one."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> Ended:
        capfd.readouterr()
        monkeypatch.setattr(sys, "argv", ["kelites", *arguments])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        shown = capfd.readouterr()
        return Ended(int(caught.value.code or 0), shown.out, shown.err)

    return call


@pytest.fixture
def kelites_elites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Command:
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> Ended:
        capfd.readouterr()
        try:
            code = elites_cli.main(arguments)
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        shown = capfd.readouterr()
        return Ended(code, shown.out, shown.err)

    return call


def assert_refused(ended: Ended, *parts: str) -> None:
    assert ended.code == 2, ended
    assert ended.out == ""
    assert ended.err.startswith(("kelites: error: ", "kelites-elites: error: "))
    assert ended.err.count("\n") == 1
    for part in parts:
        assert part in ended.err


def assert_free(run_dir: Path) -> None:
    """A second try in the same directory is possible."""
    assert not run_dir.exists() or not list(run_dir.iterdir())


# -- settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["task=nosuch"], ["task 'nosuch'", "matmul, reduce_sum, rmsnorm, softmax, stencil2d"]),
        (["task="], ["unknown task ''"]),
        (["backend=nosuch"], ["backend=nosuch", "allowed are opencl"]),
        (["workers=nosuch"], ["workers=nosuch", "local, remote, simulated"]),
        (["experiment=nosuch"], ["experiment=nosuch", "demo, smoke"]),
        (["nosuch=1"], ["unknown key 'nosuch'", "budget", "task"]),
        (["sede=1"], ["unknown key 'sede'", "did you mean seed?"]),
        (["initial_samples=1"], ["did you mean search.initial_samples?"]),
        (["budget.evaluatons=3"], ["'budget.evaluatons'", "budget.evaluations?"]),
        (["budget.nosuch=3"], ["budget.evaluations, budget.seconds, budget.stagnation"]),
        (["workers.delay=1"], ["did you mean workers.delay_s?"]),
        (["archive.bins=3"], ["'archive.bins'", "archive has no settings"]),
        (["+search.foo=1"], ["unknown key search.foo", "search.initial_samples"]),
        (["+workers.foo=1"], ["unknown key workers.foo", "workers.slots"]),
        (["+backend.foo=1"], ["unknown key backend.foo", "backend.device_index"]),
        (["+foo=1"], ["unknown key 'foo'"]),
        (["task"], ["'task' is not KEY=VALUE"]),
        (["seed=[1"], ["[1"]),
        (["seed=-1"], ["seed=-1", ">= 0"]),
        (["seed=abc"], ["seed='abc'", "a whole number"]),
        (["seed=1.5"], ["seed=1.5", "a whole number"]),
        (["budget.evaluations=0"], ["budget.evaluations=0", "positive"]),
        (["budget.evaluations=abc"], ["budget.evaluations='abc'", "int"]),
        (["budget.evaluations=null"], ["never ends"]),
        (["display=foo"], ["display='foo'", "auto, plain, none"]),
        (["search.initial_samples=-1"], ["search.initial_samples=-1", "at least 0"]),
        (["search.initial_samples=abc"], ["search.initial_samples='abc'", "int"]),
        (["search.step=0"], ["search.step=0", "at least 1"]),
        (["search.duels=maybe"], ["search.duels='maybe'", "bool"]),
        (["search.duel_share=2"], ["search.duel_share=2", "0 to 1"]),
        (["+search.bandit.policy=greedy"], ["bandit policy 'greedy'", "thompson"]),
        (["+search.bandit.discount=abc"], ["search.bandit.discount='abc'", "float"]),
        (["operators=[]"], ["operators is left without a value"]),
        (["~seed"], ["seed is left without a value"]),
        (["evaluation.min_blocks=0"], ["evaluation.min_blocks=0", "at least 1"]),
        (["evaluation.min_blocks=abc"], ["evaluation.min_blocks='abc'", "int"]),
        (["evaluation.max_blocks=1"], ["min_blocks=4 exceeds max_blocks=1"]),
        (["evaluation.target_rel_interval=nan"], ["evaluation.target_rel_interval=nan"]),
        (["evaluation.run_timeout_s=-3"], ["evaluation.run_timeout_s=-3", "positive"]),
        (["evaluation.families=[normal,nosuch]"], ["families: no 'nosuch'", "normal", "integers"]),
        (["evaluation.families=special"], ["families: no 'special'"]),
        (["confirm.top=abc"], ["confirm.top='abc'", "int"]),
        (["confirm.top=-1"], ["confirm.top=-1", "at least 0"]),
        (["confirm.processes=0"], ["confirm.processes=0", "at least 1"]),
        (["templates=[nosuch]"], ["templates: no 'nosuch'", "opencl_online"]),
        (["templates=[]"], ["templates=[]", "at least one", "opencl_online"]),
        (["workers.slots=0"], ["slots >= 1"]),
        (["workers.slots=abc"], ["workers.slots='abc'", "int"]),
        (["backend.device_index=-1"], ["backend.device_index=-1", "at least 0"]),
        (["workers=[]"], ["workers.addresses is empty"]),
        (["workers=[box]"], ["'box' is not host:port"]),
        (["workers=[box:99999]"], ["'box:99999' is not host:port"]),
        (["workers=remote"], ["workers.addresses has no value"]),
        (["run_dir=file/run"], ["file/run", "Not a directory"]),
        (["resume=nosuch"], ["nosuch: no run there"]),
        (["resume=."], ["no run there"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_settings_are_one_line_and_leave_nothing(
    kelites: Command, tmp_path: Path, arguments: list[str], parts: list[str]
):
    (tmp_path / "file").write_text("")
    assert_refused(kelites(*SIMULATED, *arguments), *parts)
    assert_free(tmp_path / "run")


def test_mlflow_uris_that_cannot_work_are_refused_and_a_second_try_works(
    kelites: Command, tmp_path: Path
):
    (tmp_path / "file").write_text("")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{closed.getsockname()[1]}"
        for uri, part in (
            ("ftp://box", "unknown scheme 'ftp'"),
            (f"sqlite:///{tmp_path}/file/mlflow.db", "cannot use"),
            (f"sqlite:///{tmp_path}", "is a folder"),
            (dead, "no MLflow server there"),
            ("folder", "sqlite:///"),
        ):
            ended = kelites(*SIMULATED, "tracking=mlflow", f"tracking.tracking_uri={uri}")
            assert_refused(ended, part)
            assert_free(tmp_path / "run")
    assert kelites(*SIMULATED) == Ended(0, "", "")


def test_one_template_can_be_searched_without_the_baselines(kelites: Command, tmp_path: Path):
    assert kelites(*SIMULATED, "templates=[opencl_online]").code == 0
    asked = [line["data"] for line in harness.lines(tmp_path / "run") if line["kind"] == "ask"]
    assert {ask["trial"]["candidate"]["genome"]["template"] for ask in asked} == {"opencl_online"}


def test_in_a_sweep_the_good_jobs_go_on(kelites: Command, tmp_path: Path):
    ended = kelites("-m", *SIMULATED[:-2], "budget.evaluations=3", "seed=0,-1,2")
    assert ended.code == 2
    told = [line for line in ended.err.splitlines() if line.startswith("kelites: error: ")]
    assert len(told) == 2
    assert "seed=-1" in told[0]
    assert told[1] == "kelites: error: 1 job(s) of the sweep failed"
    (sweep,) = (tmp_path / "multirun").iterdir()
    assert (sweep / "0" / "report.html").is_file()
    assert (sweep / "2" / "report.html").is_file()
    assert "seed=-1" in (sweep / "1" / "error.log").read_text()


def test_help_fits_a_screen_and_names_groups_and_commands(kelites: Command):
    ended = kelites("--help")
    assert (ended.code, ended.err) == (0, "")
    for part in ("kelites task=softmax", "resume=RUN_DIR", "workers: local, remote, simulated"):
        assert part in ended.out
    assert max(len(line) for line in ended.out.splitlines()) <= 100


def test_version(kelites: Command):
    ended = kelites("--version")
    assert (ended.code, ended.out.split()[0]) == (0, "kelites")


# -- a user's own task -----------------------------------------------------------------------------


@pytest.fixture
def own_task(tmp_path: Path) -> Path:
    folder = tmp_path / "own"
    shutil.copytree(str(resources.files("templates") / "softmax"), folder)
    return folder


def test_template_with_a_syntax_error_names_file_and_line(
    kelites: Command, kelites_elites: Command, own_task: Path
):
    file = own_task / "opencl_online.cl.j2"
    text = file.read_text()
    file.write_text(text + "\n//% if wg >\n//% endif\n")
    line = len(text.splitlines()) + 2
    assert_refused(kelites(*SIMULATED, "task=own"), f"own/opencl_online.cl.j2:{line}:")
    assert_refused(kelites_elites("task", "check", "own"), f"own/opencl_online.cl.j2:{line}:")
    assert_free(own_task.parent / "run")


def test_constraint_without_a_valid_point_is_named(
    kelites: Command, kelites_elites: Command, own_task: Path
):
    file = own_task / "opencl_online.cl.j2"
    text = file.read_text()
    assert "constraints:\n" in text
    file.write_text(text.replace("constraints:\n", "constraints:\n  - rows < 1\n"))
    ended = kelites(*SIMULATED, "task=own")
    assert_refused(ended, "own/opencl_online.cl.j2", "no valid point", "'rows < 1'")
    assert_free(own_task.parent / "run")
    checked = kelites_elites("task", "check", "own")
    assert checked.code == 1
    assert "FAIL opencl_online" in checked.out
    assert "'rows < 1'" in checked.out
    assert "task softmax: refused" in checked.out


@pytest.mark.parametrize(
    ("edit", "parts"),
    [
        (lambda text: text.replace("schema: 1", "schema: [1"), ["own/task.yaml:"]),
        (lambda text: text + "surprise: 1\n", ["own/task.yaml:", "surprise"]),
        (lambda text: text.replace("dims: [rows, cols]", "dims: [rows]"), ["own/task.yaml:"]),
    ],
)
def test_malformed_task_names_file_and_line(
    kelites: Command, own_task: Path, edit: Callable[[str], str], parts: list[str]
):
    file = own_task / "task.yaml"
    text = edit(file.read_text())
    assert text != file.read_text()
    file.write_text(text)
    assert_refused(kelites(*SIMULATED, "task=own"), *parts)
    assert_free(own_task.parent / "run")


def test_own_task_runs_from_inside_its_folder(
    kelites: Command, own_task: Path, monkeypatch: pytest.MonkeyPatch
):
    """The run directory lies in the task's folder then; it is not copied into itself."""
    monkeypatch.chdir(own_task)
    assert kelites(*SIMULATED, "task=.") == Ended(0, "", "")
    copied = {path.name for path in (own_task / "run" / "task" / "softmax").iterdir()}
    assert copied == {path.name for path in own_task.iterdir() if path.is_file()}


# -- run directories -------------------------------------------------------------------------------


def test_used_run_directory_is_refused_and_untouched(kelites: Command, tmp_path: Path):
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "config.yaml").write_text("mine: 1\n")
    assert_refused(kelites(*SIMULATED), "is not empty (it has config.yaml)")
    assert [path.name for path in run_dir.iterdir()] == ["config.yaml"]
    assert (run_dir / "config.yaml").read_text() == "mine: 1\n"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    ended = harness.run("kelites", *SIMULATED, "budget.evaluations=12", cwd=folder)
    assert (ended.returncode, ended.stderr) == (0, "")
    return folder / "run"


@pytest.fixture
def run_dir(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def test_finished_run_is_not_overwritten(kelites: Command, run_dir: Path):
    before = (run_dir / "journal.jsonl").read_bytes()
    assert_refused(kelites(*SIMULATED), "is not empty", f"resume={run_dir}")
    assert (run_dir / "journal.jsonl").read_bytes() == before
    assert (run_dir / "outcome.json").is_file()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["seed=4"], ["'seed=4' cannot change", "budget"]),
        (["search.step=3"], ["'search.step=3' cannot change"]),
        (["+budget.weeks=3"], ["'+budget.weeks=3' cannot change"]),
        (["budget.weeks=3"], ["unknown key 'budget.weeks'", "budget.seconds"]),
        (["budget.evaluations=abc"], ["budget.evaluations='abc'"]),
        (["workers=nosuch"], ["workers=nosuch", "local"]),
        (["-m"], ["-m does not go with resume="]),
        (["resume=other"], ["one run directory at a time"]),
        (["tracking=mlflow", "tracking.tracking_uri=ftp://x"], ["unknown scheme 'ftp'"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_resumes_are_one_line_and_change_nothing(
    kelites: Command, run_dir: Path, arguments: list[str], parts: list[str]
):
    before = contents(run_dir)
    assert_refused(kelites("resume=run", *arguments), *parts)
    assert contents(run_dir) == before


def test_resume_with_a_larger_budget_goes_on(kelites: Command, run_dir: Path):
    before = harness.lines(run_dir)
    ended = kelites("resume=run", "budget.evaluations=15", "workers.delay_s=0.01")
    assert (ended.code, ended.err) == (0, "")
    assert harness.lines(run_dir)[: len(before)] == before
    assert harness.audit(run_dir).evaluations == 15


def test_run_that_another_controller_holds_is_not_resumed(kelites: Command, run_dir: Path):
    journal, _ = Journal.open(run_dir)
    with journal:
        assert_refused(kelites("resume=run"), "another process is writing this run")
    assert kelites("resume=run").code == 0


def test_edited_settings_do_not_replay(kelites: Command, run_dir: Path):
    path = run_dir / "config.yaml"
    config = yaml.safe_load(path.read_text())
    config["seed"] += 1
    path.write_text(yaml.safe_dump(config))
    assert_refused(kelites("resume=run"), "journal event", "start a new run")


@pytest.mark.parametrize(
    ("damage", "part"),
    [
        (lambda run: (run / "config.yaml").write_text("a: ["), "config.yaml: cannot be read"),
        (lambda run: (run / "config.yaml").write_text("a: 1"), "config.yaml"),
        (lambda run: (run / "journal.jsonl").write_text("x\n"), "journal.jsonl:1:"),
        (lambda run: (run / "journal.jsonl").unlink(), "not a run directory"),
        (lambda run: shutil.rmtree(run / "task"), "copy of its task"),
        (lambda run: (run / "task" / "softmax" / "reference.py").unlink(), "no reference.py"),
    ],
)
def test_damaged_run_is_one_line(
    kelites: Command, run_dir: Path, damage: Callable[[Path], object], part: str
):
    damage(run_dir)
    assert_refused(kelites("resume=run"), part)


# -- devices and workers, in processes of their own ------------------------------------------------


def typed(command: str, *arguments: str, cwd: Path, **environment: str) -> Ended:
    ended = harness.run(command, *arguments, cwd=cwd, **environment)
    return Ended(ended.returncode, ended.stdout, ended.stderr)


def test_worker_that_does_not_answer(tmp_path: Path):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        ended = typed("kelites", *QUIET, f"workers=[{address}]", cwd=tmp_path)
    assert_refused(ended, f"no worker answers at {address}", "kelites-worker serve")
    assert_free(tmp_path / "run")


def test_machine_without_opencl(tmp_path: Path):
    nothing = {"OCL_ICD_VENDORS": str(tmp_path / "nowhere")}
    ended = typed("kelites", *QUIET, "workers=local", cwd=tmp_path, **nothing)
    assert_refused(ended, "no OpenCL", "pip install")
    assert_free(tmp_path / "run")


def test_device_number_that_is_not_there(tmp_path: Path):
    ended = typed("kelites", *QUIET, "backend.device_index=99", cwd=tmp_path)
    assert_refused(ended, "no OpenCL device 99")
    assert_free(tmp_path / "run")


def test_run_does_not_go_on_on_another_device(run_dir: Path):
    ended = typed("kelites", "resume=run", "workers=local", cwd=run_dir.parent)
    assert_refused(ended, "simulated device", "times would not compare")
    again = typed("kelites", "resume=run", cwd=run_dir.parent)
    assert (again.code, again.err) == (0, "")


# -- kelites-elites --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["dance"],
        ["list"],
        ["list", "run", "--sort", "nosuch"],
        ["list", "run", "--top", "0"],
        ["list", "run", "more"],
        ["show", "run"],
        ["failures", "run", "--status", "nosuch"],
        ["failures", "run", "--top", "abc"],
        ["confirm", "run", "--top", "-1"],
        ["confirm", "run", "--nosuch"],
        ["task"],
        ["task", "dance"],
        ["task", "check"],
    ],
    ids=" ".join,
)
def test_wrong_arguments_show_the_usage(kelites_elites: Command, arguments: list[str]):
    ended = kelites_elites(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("usage: kelites-elites")
    assert ": error: " in ended.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["list", "nosuch"], ["nosuch: no run there"]),
        (["show", "nosuch", "best"], ["nosuch: no run there"]),
        (["show", "run", "c999999"], ["no candidate 'c999999'", "1-2-0"]),
        (["show", "run", ""], ["no candidate ''"]),
        (["failures", "nosuch"], ["nosuch: no run there"]),
        (["confirm", "nosuch"], ["nosuch: no run there"]),
        (["confirm", "run", "seed=3"], ["'seed=3' cannot change"]),
        (["confirm", "run", "--top", "1", "foo"], ["'foo' is not KEY=VALUE"]),
        (["confirm", "run", "workers=[box]"], ["'box' is not host:port"]),
        (["task", "check", "nosuch"], ["unknown task 'nosuch'", "softmax"]),
        (["task", "check", "softmax", "--backend", "nosuch"], ["'nosuch'", "opencl"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_names_are_one_line(
    kelites_elites: Command, run_dir: Path, arguments: list[str], parts: list[str]
):
    assert_refused(kelites_elites(*arguments), *parts)


def test_elites_of_a_run_are_listed_shown_and_confirmed(kelites_elites: Command, run_dir: Path):
    listed = kelites_elites("list", "run", "--top", "2")
    assert listed.code == 0
    archive = json.loads((run_dir / "archive.json").read_text())["elites"]
    assert sum(elite["candidate"]["id"] in listed.out for elite in archive) == 2
    shown = kelites_elites("show", "run", "best")
    assert shown.code == 0
    assert "__kernel" in shown.out
    failed = kelites_elites("failures", "run")
    assert failed.code == 0
    found = [
        line["data"]
        for line in harness.lines(run_dir)
        if line["kind"] == "tell" and line["data"]["evaluation"]["status"] == "incorrect"
    ]
    assert failed.out.count("made-up wrong result") == len(found) > 0
    confirmed = kelites_elites("confirm", "run", "--top", "1", "workers=simulated")
    assert confirmed.code == 0
    assert "simulated device (no measurement)" in confirmed.out
    (row,) = json.loads((run_dir / "confirm.json").read_text())
    assert row["status"] == "ok"


def test_shipped_tasks_are_listed_and_sound(kelites_elites: Command):
    listed = kelites_elites("task", "list")
    names = [line.split()[0] for line in listed.out.splitlines()]
    assert names == ["matmul", "reduce_sum", "rmsnorm", "softmax", "stencil2d"]
    checked = kelites_elites("task", "check", "rmsnorm")
    assert checked.code == 0
    assert "FAIL" not in checked.out
    assert "task rmsnorm: sound" in checked.out
