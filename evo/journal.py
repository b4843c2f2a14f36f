"""Append-only event log of a run: the truth from which archive and reports can be rebuilt.

One JSON object per line; the first is the header. An event is on disk before `append` returns, so
what a caller acts on afterwards survives `kill -9`. A line that was cut off by a crash never
counted and is dropped when the journal is opened again.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from evo.errors import ConfigError, JournalError
from evo.serial import from_json, to_builtins, to_json

JOURNAL_SCHEMA = "kelites-journal-1"
JOURNAL_FILE = "journal.jsonl"
HEADER_KIND = "header"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line.

    Attributes:
        seq: 0 for the header, then 1, 2, ... without gaps.
        kind: What happened, e.g. "ask" or "tell".
        wall_time: Seconds since the epoch; for people, nothing depends on it.
        data: Dicts, lists and scalars.
    """

    seq: int
    kind: str
    wall_time: float
    data: Any


class Journal:
    """Exclusive writer of one journal; made by `create` or `open`, not directly.

    Appending is thread-safe. The lock belongs to the open file: it goes with the process, however
    that ends.
    """

    def __init__(self, *, path: Path, descriptor: int, header: dict[str, Any], size: int) -> None:
        self.path = path
        self.header = header
        self._descriptor = descriptor
        self._size_bytes = size
        self._next_seq = 1
        self._failure = ""
        self._mutex = threading.Lock()

    @classmethod
    def create(
        cls, run_dir: Path, header: dict[str, Any], *, beside: Collection[str] = ()
    ) -> Journal:
        """Starts a journal in a new or empty directory.

        Hidden entries (such as Hydra's) and `*.log` files do not count as content.

        Args:
            run_dir: Made if missing.
            header: What the run was started with; "schema" is added.
            beside: Names of entries that may be there already.

        Raises:
            ConfigError: If the directory holds something or cannot be made.
            JournalError: If the header cannot be written.
        """
        path = run_dir / JOURNAL_FILE
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
            names = sorted(entry.name for entry in run_dir.iterdir())
            content = [
                name
                for name in names
                if not name.startswith(".") and not name.endswith(".log") and name not in beside
            ]
            if content:
                hint = f", continue it with resume={run_dir}" if JOURNAL_FILE in content else ""
                raise ConfigError(
                    f"run directory {run_dir} is not empty (it has {content[0]}): "
                    f"choose a new one{hint}"
                )
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
            descriptor = os.open(path, flags, 0o644)
        except FileExistsError:
            raise ConfigError(f"run directory {run_dir} is not empty: choose a new one") from None
        except OSError as error:
            raise ConfigError(f"run directory {run_dir}: {error.strerror}") from None
        header = {**to_builtins(header), "schema": JOURNAL_SCHEMA}
        journal = cls(path=path, descriptor=descriptor, header=header, size=0)
        try:
            _lock(descriptor, path)
            journal._next_seq = 0
            journal.append(HEADER_KIND, header)
            _sync_directory(run_dir)
        except BaseException:
            path.unlink(missing_ok=True)  # so that the directory can be used again
            journal.close()
            raise
        return journal

    @classmethod
    def open(cls, run_dir: Path) -> tuple[Journal, list[Event]]:
        """Opens a journal to continue it.

        Returns:
            The journal, and all its events, the header first.

        Raises:
            JournalError: If there is none, another process holds it, or it is damaged anywhere
                but in a last line that was cut off (that one is dropped).
        """
        path = run_dir / JOURNAL_FILE
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        except FileNotFoundError:
            raise JournalError(f"{run_dir} is not a run directory: no {JOURNAL_FILE}") from None
        except OSError as error:
            raise JournalError(f"{path}: {error.strerror}") from None
        try:
            _lock(descriptor, path)
            events, size = _read(path)
            os.ftruncate(descriptor, size)
            os.fsync(descriptor)
        except OSError as error:
            os.close(descriptor)
            raise JournalError(f"{path}: {error.strerror}") from None
        except BaseException:
            os.close(descriptor)
            raise
        journal = cls(path=path, descriptor=descriptor, header=events[0].data, size=size)
        journal._next_seq = len(events)
        return journal, events

    def append(self, kind: str, data: Any) -> Event:
        """Writes one event to disk.

        Args:
            kind: What happened.
            data: Records, dicts, lists and scalars.

        Returns:
            The event as it will be read back.

        Raises:
            JournalError: If it cannot be written (disk full, closed). Nothing of it stays in the
                file then.
        """
        with self._mutex:
            if self._descriptor < 0:
                raise JournalError(f"{self.path}: the journal is closed")
            if self._failure:
                raise JournalError(f"{self.path}: an earlier write failed: {self._failure}")
            record = Event(seq=self._next_seq, kind=kind, wall_time=time.time(), data=data)
            line = to_json(record) + b"\n"
            try:
                self._write(line)
            except OSError as error:
                self._take_back(error)
                raise JournalError(f"{self.path}: cannot write: {error.strerror}") from None
            self._size_bytes += len(line)
            self._next_seq += 1
            return from_json(line, Event)

    def _write(self, line: bytes) -> None:
        written = 0
        while written < len(line):
            written += os.write(self._descriptor, line[written:])
        os.fsync(self._descriptor)

    def _take_back(self, error: OSError) -> None:
        """Cuts off a partial line; if that fails too, nothing more may follow it."""
        try:
            os.ftruncate(self._descriptor, self._size_bytes)
            os.fsync(self._descriptor)
        except OSError:
            self._failure = error.strerror or str(error)

    def close(self) -> None:
        """Releases the file and its lock; idempotent."""
        with self._mutex:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read_events(path: Path) -> list[Event]:
    """Reads a journal, or a run directory's, without locking it; a run may be writing to it.

    Raises:
        JournalError: If there is none or it is damaged.
    """
    file = path / JOURNAL_FILE if path.is_dir() else path
    try:
        return _read(file)[0]
    except FileNotFoundError:
        raise JournalError(f"{path} is not a run directory: no {JOURNAL_FILE}") from None
    except OSError as error:
        raise JournalError(f"{file}: {error.strerror}") from None


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise JournalError(f"{path}: another process is writing this run") from None


def _read(path: Path) -> tuple[list[Event], int]:
    """Reads all whole lines; returns them and their length in bytes."""
    content = path.read_bytes()
    size = content.rfind(b"\n") + 1
    events: list[Event] = []
    decoder = msgspec.json.Decoder(Event)
    for number, line in enumerate(content[:size].split(b"\n")[:-1], start=1):
        try:
            event = decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise JournalError(f"{path}:{number}: not a journal event: {error}") from None
        if event.seq != len(events):
            raise JournalError(
                f"{path}:{number}: event {event.seq} where {len(events)} was expected"
            )
        if not events:
            _check_header(event, f"{path}:{number}")
        events.append(event)
    if not events:
        raise JournalError(f"{path}: nothing was recorded yet, start a new run")
    return events, size


def _check_header(event: Event, where: str) -> None:
    schema = event.data.get("schema") if isinstance(event.data, dict) else None
    if event.kind != HEADER_KIND or schema != JOURNAL_SCHEMA:
        raise JournalError(
            f"{where}: schema {schema!r} is not supported (allowed: {JOURNAL_SCHEMA})"
        )


def _sync_directory(directory: Path) -> None:
    """Makes a new file's name survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
