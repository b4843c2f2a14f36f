"""Parent's side of one child process: spawn, exchange frames under a deadline, kill its group."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from workers.frames import (
    HEADER,
    FrameError,
    Reply,
    Request,
    decode_reply,
    encode_frame,
    frame_length,
)

LOG_BYTES = 16 * 1024
_CHUNK = 1 << 16
_DIR_PREFIX = "kelites-child-"
_STALE_AFTER_S = 60.0
_KILL_WAIT_S = 10.0

# Everything else (tokens, proxies, settings of the run) stays out of the child.
_PASSED_VARIABLES = frozenset({"PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH"})
_PASSED_PREFIXES = ("OCL_", "OPENCL_", "POCL_", "CUDA_", "NVIDIA_", "HIP_", "ROCR_", "COV")


class ChildTimeout(Exception):
    """No reply before the deadline. The child still runs: kill it."""


class ChildDied(Exception):
    """The child ended, or sent something that is not a reply, while one was awaited.

    Attributes:
        misbehaved: It sent something that is not a reply.
    """

    def __init__(self, message: str, *, misbehaved: bool = False) -> None:
        super().__init__(message)
        self.misbehaved = misbehaved


class _Spawner:
    """One thread that starts all children and lives as long as the process.

    The parent-death signal is sent when the *thread* that spawned a child ends, so a short-lived
    caller thread must not be the one.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spawn")
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spawn")

    def popen(
        self, argv: Sequence[str], env: dict[str, str], cwd: str, fds: Sequence[int], log_fd: int
    ) -> subprocess.Popen[bytes]:
        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                argv,
                env=env,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=log_fd,
                stderr=log_fd,
                pass_fds=tuple(fds),
                start_new_session=True,
            )

        return self._pool.submit(start).result()


_spawner = _Spawner()
_running: weakref.WeakSet[ChildProcess] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """Leaves no child and no directory behind when the program ends without closing them."""
    for child in list(_running):
        if child.owner == os.getpid():
            child.stop()


class ChildProcess:
    """A running child. One thread exchanges frames; `kill` may come from any thread.

    Attributes:
        arena_fd: Shared memory file, without a name, so nothing is left behind whoever is killed.
        pid: Process and group id.
        owner: The process that spawned it.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        """Spawns `python -m workers.child` with `arguments`."""
        _sweep_stale_directories()
        self._lock = threading.Lock()
        self._log = bytearray()
        self._killed = False
        self._returncode: int | None = None
        self._directory = Path(tempfile.mkdtemp(prefix=_DIR_PREFIX))
        self._directory_lock = os.open(self._directory / "lock", os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._directory_lock, fcntl.LOCK_EX)
        self.arena_fd = _create_arena(self._directory)
        request_read, self._request_fd = os.pipe()
        self._reply_fd, reply_write = os.pipe()
        self._log_fd, log_write = os.pipe()
        for fd in (self._request_fd, self._reply_fd, self._log_fd):
            os.set_blocking(fd, False)
        argv = [sys.executable, "-P", "-m", "workers.child", *arguments]
        argv += ["--parent", str(os.getpid()), "--request-fd", str(request_read)]
        argv += ["--reply-fd", str(reply_write), "--arena-fd", str(self.arena_fd)]
        try:
            self._process = _spawner.popen(
                argv,
                child_environment(self._directory),
                str(self._directory),
                (request_read, reply_write, self.arena_fd),
                log_write,
            )
        except BaseException:
            self._release()
            raise
        finally:
            for fd in (request_read, reply_write, log_write):
                os.close(fd)
        self.pid = self._process.pid
        self.owner = os.getpid()
        _running.add(self)

    @property
    def log(self) -> str:
        """The last 16 KB the child and its kernels printed."""
        return self._log.decode(errors="replace")

    @property
    def returncode(self) -> int | None:
        """Exit status, negative for a signal; None while it has not been collected."""
        return self._returncode

    def alive(self) -> bool:
        """Says whether the process runs and was not killed."""
        return not self._killed and not self._exited()

    def _exited(self) -> bool:
        with self._lock:
            if self._returncode is not None:
                return True
            flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, self.pid, flags) is not None

    def exchange(self, request: Request | None, timeout_s: float) -> Reply:
        """Sends a request, if any, and waits for one reply, collecting the log meanwhile.

        Raises:
            ChildTimeout: If the reply is not complete in time.
            ChildDied: If the child ends or sends garbage.
        """
        deadline = time.monotonic() + timeout_s
        pending = memoryview(b"" if request is None else encode_frame(request))
        received = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(self._reply_fd, selectors.EVENT_READ)
            selector.register(self._log_fd, selectors.EVENT_READ)
            if pending:
                selector.register(self._request_fd, selectors.EVENT_WRITE)
            while True:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    raise ChildTimeout(f"no reply within {timeout_s:g} s")
                for key, _ in selector.select(remaining):
                    if key.fd == self._request_fd:
                        try:
                            pending = pending[os.write(self._request_fd, pending) :]
                        except BlockingIOError:
                            continue
                        except BrokenPipeError:
                            pending = pending[:0]
                        if not pending:
                            selector.unregister(self._request_fd)
                    elif key.fd == self._log_fd:
                        if not self._read_log():
                            selector.unregister(self._log_fd)
                    else:
                        reply = self._read_reply(received)
                        if reply is not None:
                            return reply

    def _read_reply(self, received: bytearray) -> Reply | None:
        """Takes what has arrived; returns the reply once it is complete."""
        try:
            chunk = os.read(self._reply_fd, _CHUNK)
        except BlockingIOError:
            return None
        if not chunk:
            raise ChildDied("the child closed its pipe")
        received += chunk
        if len(received) < HEADER.size:
            return None
        try:
            length = frame_length(bytes(received[: HEADER.size]))
            if len(received) > HEADER.size + length:
                raise FrameError("more bytes than one frame")
            if len(received) < HEADER.size + length:
                return None
            return decode_reply(bytes(received[HEADER.size :]))
        except FrameError as error:
            message = f"the child broke the protocol: {error}"
            raise ChildDied(message, misbehaved=True) from None

    def _read_log(self) -> bool:
        """Takes what was printed; False at the end of the stream."""
        try:
            chunk = os.read(self._log_fd, _CHUNK)
        except BlockingIOError:
            return True
        self._log += chunk
        del self._log[:-LOG_BYTES]
        return bool(chunk)

    def kill(self) -> None:
        """Sends SIGKILL to the whole process group; any thread may call it, at any time."""
        self._killed = True
        with self._lock:
            # Not yet reaped, so the id can't belong to anybody else.
            if self._returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pid, signal.SIGKILL)

    def stop(self, grace_s: float = 0.0) -> int:
        """Ends the child and frees all that belongs to it; returns its exit status. Idempotent.

        Args:
            grace_s: How long to let an idle child leave by itself before its group is killed.
        """
        if self._returncode is not None:
            return self._returncode
        _running.discard(self)
        os.close(self._request_fd)
        self._await_exit(grace_s)
        self.kill()
        # SIGKILL can wait for a driver; a process stuck there for good is left to the system.
        self._await_exit(_KILL_WAIT_S)
        with self._lock:
            returncode = self._process.poll()
            self._returncode = -signal.SIGKILL if returncode is None else returncode
        # Each read takes up to 64 KB; a full pipe holds no more than that by default.
        for _ in range(4):
            self._read_log()
        for fd in (self._reply_fd, self._log_fd):
            os.close(fd)
        os.close(self.arena_fd)
        self._release()
        return self._returncode

    def _await_exit(self, limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline and not self._exited():
            time.sleep(0.002)

    def _release(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)
        os.close(self._directory_lock)


def child_environment(directory: Path) -> dict[str, str]:
    """Returns the reduced environment of a child whose private directory is given."""
    env = {
        name: value
        for name, value in os.environ.items()
        if name in _PASSED_VARIABLES or name.startswith(_PASSED_PREFIXES)
    }
    # The child starts in its own directory, so relative import paths must be resolved here.
    inherited = [os.path.abspath(p) for p in env.get("PYTHONPATH", "").split(os.pathsep) if p]
    root = str(Path(__file__).resolve().parent.parent)
    env["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([root, *inherited]))
    env["HOME"] = env["TMPDIR"] = str(directory)
    env["POCL_CACHE_DIR"] = str(directory / "pocl")
    env["POCL_KERNEL_CACHE"] = "0"
    env["PYOPENCL_NO_CACHE"] = "1"
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    env["OMP_NUM_THREADS"] = "1"
    return env


def _create_arena(directory: Path) -> int:
    """Opens a shared memory file that has no name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("kelites-arena", os.MFD_CLOEXEC)
    fd, path = tempfile.mkstemp(dir=directory)
    os.unlink(path)
    return fd


def _sweep_stale_directories() -> None:
    """Removes private directories whose owner was killed: nobody holds their lock any more."""
    for directory in Path(tempfile.gettempdir()).glob(f"{_DIR_PREFIX}*"):
        with contextlib.suppress(OSError):
            info = (directory / "lock").stat()
            if info.st_uid != os.getuid() or time.time() - info.st_mtime < _STALE_AFTER_S:
                continue
            fd = os.open(directory / "lock", os.O_RDWR)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory, ignore_errors=True)
            finally:
                os.close(fd)
