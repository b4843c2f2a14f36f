"""A run folder is claimed whole or not at all, whatever ends the claim."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from evo import run_folder
from evo.errors import ConfigError, JournalError
from evo.journal import Journal, read_events
from evo.task import load_task

TASK = load_task("softmax")


def claim(run_dir: Path) -> Journal:
    return run_folder.claim(run_dir, header={"run_id": "r"}, config_yaml="a: 1\n", task=TASK)


def assert_claimed(run_dir: Path) -> None:
    assert read_events(run_dir)[0].data["run_id"] == "r"
    assert (run_dir / "config.yaml").read_text() == "a: 1\n"
    again = load_task(str(run_folder.snapshot(run_dir)))
    assert again.bundle.task_hash == TASK.bundle.task_hash
    assert {path.name for path in run_dir.iterdir()} == {"config.yaml", "journal.jsonl", "task"}


def test_claiming_makes_everything_a_resume_needs(tmp_path):
    run_folder.require_new(tmp_path / "a" / "run")
    claim(tmp_path / "a" / "run").close()
    assert_claimed(tmp_path / "a" / "run")
    with pytest.raises(ConfigError, match="is not empty.*resume="):
        run_folder.require_new(tmp_path / "a" / "run")
    with pytest.raises(ConfigError, match="is not empty"):
        claim(tmp_path / "a" / "run")
    assert_claimed(tmp_path / "a" / "run")


def test_what_a_user_keeps_there_is_never_touched(tmp_path):
    for name in ("config.yaml", "journal.jsonl", "notes.txt"):
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir()
        (folder / name).write_text("mine")
        with pytest.raises(ConfigError, match=f"is not empty \\(it has {name}"):
            claim(folder)
        assert [path.name for path in folder.iterdir()] == [name]
        assert (folder / name).read_text() == "mine"


def test_released_folder_can_be_claimed_again(tmp_path):
    claim(tmp_path / "run").close()
    run_folder.release(tmp_path / "run")
    assert list((tmp_path / "run").iterdir()) == []
    claim(tmp_path / "run").close()
    assert_claimed(tmp_path / "run")


@pytest.mark.parametrize("step", ["_copy_task", "Journal.create", "Journal.append"])
def test_claim_that_is_killed_does_not_block_the_next(tmp_path, step):
    run = tmp_path / "run"
    script = f"""
        import os, signal, sys
        sys.path.insert(0, sys.argv[2])
        from pathlib import Path
        from evo import run_folder
        from tests.evo.test_run_folder import claim
        def die(*args, **options):
            os.kill(os.getpid(), signal.SIGKILL)
        run_folder.{step} = die
        claim(Path(sys.argv[1]))
    """
    root = Path(__file__).resolve().parents[2]
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(run), str(root)], check=False
    )
    assert process.returncode == -signal.SIGKILL
    assert [name for name in os.listdir(run) if not name.startswith(".")]
    run_folder.require_new(run)
    claim(run).close()
    assert_claimed(run)


def test_claim_that_fails_leaves_nothing(tmp_path, monkeypatch):
    def full(*args, **options):
        raise JournalError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "create", full)
        with pytest.raises(JournalError):
            claim(tmp_path / "run")
    assert list((tmp_path / "run").iterdir()) == []
    claim(tmp_path / "run").close()
    assert_claimed(tmp_path / "run")


def test_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="Not a directory"):
        claim(tmp_path / "file" / "run")


def test_missing_copy_of_the_task_is_said(tmp_path):
    claim(tmp_path).close()
    run_folder.shutil.rmtree(tmp_path / "task")
    with pytest.raises(ConfigError, match="copy of its task"):
        run_folder.snapshot(tmp_path)


def test_copy_holds_the_task_as_loaded_whatever_was_edited_since(tmp_path):
    source = tmp_path / "mine"
    shutil.copytree(TASK.folder, source)
    task = load_task(str(source))
    with (source / "reference.py").open("a", encoding="utf-8") as file:
        file.write("# edited\n")
    run_folder.claim(tmp_path / "run", header={}, config_yaml="a: 1\n", task=task).close()
    again = load_task(str(run_folder.snapshot(tmp_path / "run")))
    assert again.bundle.task_hash == task.bundle.task_hash
