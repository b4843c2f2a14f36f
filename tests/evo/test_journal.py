from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evo.errors import ConfigError, JournalError
from evo.genome import Candidate, Genome
from evo.journal import JOURNAL_FILE, JOURNAL_SCHEMA, Event, Journal, read_events

GENOME = Genome(template="opencl_a", template_hash="0", params={"wg": 64, "fast": True})
CANDIDATE = Candidate(id="c000001", genome=GENOME, operator="seed")


def fill(run_dir: Path, count: int = 3) -> list[Event]:
    """Writes a journal of `count` events after the header; returns those."""
    with Journal.create(run_dir, {"task": "softmax"}) as journal:
        return [journal.append("ask", {"n": n, "text": "ü\n" * n}) for n in range(count)]


def test_events_come_back_as_they_were_appended(tmp_path):
    with Journal.create(tmp_path / "a" / "run", {"task": "softmax", "seed": 3}) as journal:
        first = journal.append("ask", CANDIDATE)
        second = journal.append("tell", {"list": [1, 2.5, None, "x"], "inner": {"a": True}})
        header = journal.header
    reopened, events = Journal.open(tmp_path / "a" / "run")
    reopened.close()
    assert events[0].data == header == {"task": "softmax", "seed": 3, "schema": JOURNAL_SCHEMA}
    assert reopened.header == header
    assert events[1:] == [first, second]
    assert [event.seq for event in events] == [0, 1, 2]
    assert msgspec.convert(events[1].data, Candidate) == CANDIDATE
    assert second.wall_time >= first.wall_time > 1e9


def test_appending_continues_after_reopening(tmp_path):
    run = tmp_path / "run"
    fill(run)
    journal, events = Journal.open(run)
    with journal:
        added = journal.append("tell", 1)
        assert added.seq == len(events) == 4
    assert read_events(run) == [*events, added]
    assert read_events(run / JOURNAL_FILE) == [*events, added]


def test_readers_need_no_lock(tmp_path):
    with Journal.create(tmp_path / "run", {}) as journal:
        for n in range(3):
            journal.append("ask", n)
            assert [event.data for event in read_events(tmp_path / "run")][1:] == list(range(n + 1))


def test_an_event_is_on_disk_when_append_returns(tmp_path):
    run = tmp_path / "run"
    script = """
        import os, signal, sys
        from pathlib import Path
        from evo.journal import Journal
        journal = Journal.create(Path(sys.argv[1]), {})
        journal.append("ask", 1)
        journal.append("tell", 2)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    process = subprocess.run([sys.executable, "-c", textwrap.dedent(script), str(run)], check=False)
    assert process.returncode == -9
    journal, events = Journal.open(run)  # the lock died with its holder
    journal.close()
    assert [event.data for event in events[1:]] == [1, 2]


# --- Directories and locks -----------------------------------------------------------------------


def test_a_used_run_directory_is_refused(tmp_path):
    fill(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"is not empty.*resume="):
        Journal.create(tmp_path / "run", {})
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("x")
    with pytest.raises(ConfigError, match=r"is not empty \(it has notes\.txt\)"):
        Journal.create(tmp_path / "other", {})
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="run directory"):
        Journal.create(tmp_path / "file", {})


def test_hidden_entries_and_logs_do_not_count(tmp_path):
    (tmp_path / ".hydra").mkdir()
    (tmp_path / "kelites.log").write_text("")
    Journal.create(tmp_path, {}).close()


def test_only_one_writer(tmp_path):
    journal = Journal.create(tmp_path / "run", {})
    with pytest.raises(JournalError, match="another process is writing this run"):
        Journal.open(tmp_path / "run")
    journal.append("ask", 1)  # and the holder is not disturbed
    journal.close()
    again, events = Journal.open(tmp_path / "run")
    again.close()
    assert len(events) == 2


def test_no_journal(tmp_path):
    for action in (Journal.open, read_events):
        with pytest.raises(JournalError, match="is not a run directory"):
            action(tmp_path)


def test_closed(tmp_path):
    journal = Journal.create(tmp_path / "run", {})
    journal.close()
    journal.close()
    with pytest.raises(JournalError, match="closed"):
        journal.append("ask", 1)


# --- Damage --------------------------------------------------------------------------------------


def test_a_cut_at_any_byte_loses_only_the_events_behind_it(tmp_path):
    run = tmp_path / "run"
    fill(run)
    path = run / JOURNAL_FILE
    content = path.read_bytes()
    whole = read_events(run)
    ends = [i + 1 for i, byte in enumerate(content) if byte == ord("\n")]
    for cut in range(len(content) + 1):
        path.write_bytes(content[:cut])
        complete = sum(end <= cut for end in ends)
        if complete == 0:
            with pytest.raises(JournalError, match="nothing was recorded"):
                Journal.open(run)
            continue
        assert read_events(run) == whole[:complete]
        journal, events = Journal.open(run)
        assert events == whole[:complete]
        with journal:
            added = journal.append("tell", "after the cut")
        assert read_events(run) == [*whole[:complete], added]


@given(st.integers(0, 10_000), st.integers(0, 255), st.integers(0, 10_000))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_changed_byte_is_an_error_or_harmless_but_never_a_crash(tmp_path, place, byte, cut):
    run = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
    whole = fill(run)
    path = run / JOURNAL_FILE
    content = bytearray(path.read_bytes())
    content[place % len(content)] = byte
    path.write_bytes(content[: len(content) - cut % 40])
    try:
        events = read_events(run)
    except JournalError as error:
        message = str(error)
        assert message.startswith(str(path)) and "\n" not in message  # noqa: PT018
    else:
        assert [event.seq for event in events] == list(range(len(events)))
        assert len(events) <= len(whole) + 1


def lines_of(run: Path) -> list[str]:
    return (run / JOURNAL_FILE).read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize(
    ("damage", "line", "reason"),
    [
        (lambda lines: [lines[0], "{broken", *lines[2:]], 2, "not a journal event"),
        (lambda lines: [lines[0], "", *lines[1:]], 2, "not a journal event"),
        (lambda lines: [lines[0], *lines[2:]], 2, "event 2 where 1 was expected"),
        (lambda lines: [*lines, lines[-1]], 5, "event 3 where 4 was expected"),
        (lambda lines: [*lines[:-1], lines[-1][:-1]], 4, "not a journal event"),
        (lambda lines: [lines[0].replace("journal-1", "journal-9"), *lines[1:]], 1,
         "schema 'kelites-journal-9' is not supported (allowed: kelites-journal-1)"),
        (lambda lines: [lines[0].replace('"header"', '"ask"'), *lines[1:]], 1, "not supported"),
        (lambda lines: ['{"seq": 0}', *lines[1:]], 1, "not a journal event"),
    ],
)  # fmt: skip
def test_damage_names_the_file_and_line(tmp_path, damage, line, reason):
    run = tmp_path / "run"
    fill(run)
    (run / JOURNAL_FILE).write_text("\n".join(damage(lines_of(run))) + "\n", encoding="utf-8")
    for action in (Journal.open, read_events):
        with pytest.raises(JournalError) as caught:
            action(run)
        assert f"{JOURNAL_FILE}:{line}: " in str(caught.value)
        assert reason in str(caught.value)
    (run / JOURNAL_FILE).unlink()  # and a failed open holds no lock
    fill(run)


def test_a_full_disk_is_one_line_and_leaves_the_journal_readable(tmp_path, monkeypatch):
    run = tmp_path / "run"
    journal = Journal.create(run, {})
    journal.append("ask", 1)
    real_write = os.write

    def half_then_full(descriptor: int, data: bytes) -> int:
        if len(data) > 20:
            return real_write(descriptor, data[:20])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", half_then_full)
    with pytest.raises(JournalError, match="cannot write: No space left on device") as caught:
        journal.append("tell", "x" * 7)
    assert "\n" not in str(caught.value)
    assert [event.data for event in read_events(run)[1:]] == [1]
    monkeypatch.undo()
    journal.append("tell", 2)  # space again
    journal.close()
    assert [event.data for event in read_events(run)[1:]] == [1, 2]
    assert len(lines_of(run)) == 3


def test_nothing_follows_a_line_that_could_not_be_taken_back(tmp_path, monkeypatch):
    journal = Journal.create(tmp_path / "run", {})

    def fails(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(JournalError, match="cannot write: Input/output error"):
        journal.append("ask", 1)
    monkeypatch.undo()
    with pytest.raises(JournalError, match="an earlier write failed"):
        journal.append("ask", 2)
    journal.close()
    assert len(read_events(tmp_path / "run")) == 1


def test_a_header_that_cannot_be_written_leaves_the_directory_usable(tmp_path, monkeypatch):
    def fails(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", fails)
    with pytest.raises(JournalError, match="No space left"):
        Journal.create(tmp_path / "run", {})
    monkeypatch.undo()
    Journal.create(tmp_path / "run", {}).close()


def test_one_event_is_one_line_of_json(tmp_path):
    fill(tmp_path / "run")
    for line in lines_of(tmp_path / "run"):
        assert set(json.loads(line)) == {"seq", "kind", "wall_time", "data"}
