"""The contract of a backend: the one file that knows how a language is compiled and launched.

A backend lives in `workers/backends/<name>.py` and exposes `create() -> Backend`; its file name is
its name, there is no registry. It runs only inside a child process (`workers/child.py`), which owns
everything generic: guard bands, poison, which bytes travel where. `evo.testing.backend_suite`
holds the tests that every backend inherits.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

import workers.backends
from evo.errors import BackendUnavailable
from evo.evaluation import CodeFeatures, Resources
from evo.job import DeviceInfo, Launch

Bytes = NDArray[np.uint8]


class CompileFailure(Exception):
    """The source does not compile; `log` is the compiler's output, for people."""

    def __init__(self, log: str) -> None:
        super().__init__(log)
        self.log = log


class LaunchFailure(Exception):
    """A launch was refused or failed.

    Attributes:
        sticky: The device or its context may be damaged, so the child must be replaced.
    """

    def __init__(self, message: str, *, sticky: bool) -> None:
        super().__init__(message)
        self.sticky = sticky


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledCode:
    """What one compilation gave.

    Attributes:
        binary: Loadable by `Device.load` of the same device in another process.
        log: Warnings.
        code_hash: Equal for equal machine code, whatever the source's names and comments.
        features: Facts for the descriptor.
        resources: What the compiler reports, worst case over the entries.
        forbidden: One-line reason when the code holds something that is not allowed, else "".
    """

    binary: bytes
    log: str = ""
    code_hash: str = ""
    features: CodeFeatures | None = None
    resources: Resources = field(default_factory=Resources)
    forbidden: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """A region of a buffer and the bytes (1, 2, 4 or 8 of them) to repeat over it."""

    buffer: Any
    start: int
    nbytes: int
    pattern: bytes


class Device(Protocol):
    """An open device. All calls come from one thread; all of them block until done.

    Buffers, modules and calls are opaque to the caller and freed when dropped.
    """

    info: DeviceInfo
    clock: str
    """What `measure` reads, for example "opencl-event"."""

    def compile(
        self, source: str, build_options: Sequence[str], entries: Sequence[str]
    ) -> CompiledCode:
        """Compiles `source`, which must define every kernel in `entries`.

        Raises:
            CompileFailure: With the compiler's log.
        """
        ...

    def load(self, binary: bytes, source: str, build_options: Sequence[str]) -> Any:
        """Makes code launchable, from the binary where there is one, else from the source.

        Raises:
            LaunchFailure: If the driver takes neither.
        """
        ...

    def allocate(self, total_bytes: int, payload_start: int, payload_bytes: int) -> Any:
        """Allocates a buffer of which kernels are given only the payload's address.

        The bytes before and after the payload are the caller's guard bands: really allocated, and
        adjacent to the payload, so a stray access lands there.

        Raises:
            LaunchFailure: If the device lacks the memory.
        """
        ...

    def write(self, buffer: Any, start: int, data: Bytes) -> None:
        """Copies host bytes into the whole buffer's bytes from `start` on."""
        ...

    def read(self, buffer: Any, start: int, nbytes: int) -> Bytes:
        """Copies bytes of the whole buffer, guards included, to the host."""
        ...

    def fill(self, fills: Sequence[Fill]) -> None:
        """Repeats patterns over regions."""
        ...

    def prepare(self, module: Any, launches: Sequence[Launch], bindings: Mapping[str, Any]) -> Any:
        """Binds launches to buffers and numbers (numpy scalars) by argument name.

        Checks all that can be checked before the device is touched: entry and argument names,
        their count, grid and block against the limits of device and kernel.

        Raises:
            LaunchFailure: Not sticky, one line that says what is wrong and what is allowed.
        """
        ...

    def run(self, call: Any) -> None:
        """Runs a prepared call to its end.

        Raises:
            LaunchFailure: If the driver refuses a launch or reports an error.
        """
        ...

    def measure(
        self, call: Any, count: int, fills: Sequence[Fill], flush_bytes: int
    ) -> tuple[float, ...]:
        """Runs a call `count` times and returns each one's device time, microseconds.

        A call's time spans from its first launch's start to its last launch's end, on the device's
        own clock. Before each call, outside its time, the `fills` are applied and, if
        `flush_bytes` is not 0, a buffer of that size is overwritten to empty the caches.

        Raises:
            LaunchFailure: If the driver refuses a launch or reports an error.
        """
        ...


class Backend(Protocol):
    """A way to compile and run kernels in one language."""

    name: str

    def available(self) -> str:
        """Returns "" if this machine can run the backend, else why not and what to install."""
        ...

    def open(self, device_index: int) -> Device:
        """Opens a device.

        Raises:
            BackendUnavailable: If a package or the device is missing.
        """
        ...


def backend_names() -> tuple[str, ...]:
    """Returns the names of all backends that have a file, usable here or not."""
    modules = pkgutil.iter_modules(workers.backends.__path__)
    return tuple(sorted(m.name for m in modules if m.name != "base" and "_" not in m.name))


def load_backend(name: str) -> Backend:
    """Imports a backend by the name of its file.

    Raises:
        BackendUnavailable: If there is none of that name.
    """
    if name not in backend_names():
        raise BackendUnavailable(f"no backend '{name}'; there are: {', '.join(backend_names())}")
    return cast(Backend, importlib.import_module(f"workers.backends.{name}").create())


def available_backends() -> dict[str, str]:
    """Asks every backend whether this machine can run it: name -> "" or the reason why not.

    This loads drivers into the calling process, so it is for tests and the doctor command.
    """
    return {name: load_backend(name).available() for name in backend_names()}
