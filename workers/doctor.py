"""What this machine can run: one line per backend and device, with what to install."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from evo.errors import EvoError
from evo.job import DeviceInfo

PLANNED_BACKENDS = ("cuda", "hip", "sycl", "triton")
"""Backends the design has and this version has not."""

_MAX_DEVICES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the table.

    Attributes:
        backend: Name of the backend.
        state: "run", "compile-only" or "missing".
        index: The device's number for `--device`; None where there is no device.
        device: Its name and kind.
        version: Driver and platform.
        advice: What to do about a missing one.
    """

    backend: str
    state: str
    index: int | None = None
    device: str = ""
    version: str = ""
    advice: str = ""


def examine() -> list[Finding]:
    """Looks at every backend; devices are opened in child processes, one after the other."""
    from workers.backends.base import backend_names, load_backend

    findings: list[Finding] = []
    present = backend_names()
    for name in present:
        advice = load_backend(name).available()
        if advice:
            findings.append(Finding(backend=name, state="missing", advice=advice))
        else:
            findings.extend(_devices(name))
    for name in PLANNED_BACKENDS:
        if name not in present:
            findings.append(Finding(backend=name, state="missing", advice="not in this version"))
    return findings


def _devices(backend: str) -> list[Finding]:
    """Opens the devices of a backend by number until there is none of that number."""
    findings: list[Finding] = []
    for index in range(_MAX_DEVICES):
        try:
            device = _open(backend, index)
        except EvoError as error:
            if not findings:
                findings.append(Finding(backend=backend, state="missing", advice=str(error)))
            break
        findings.append(
            Finding(
                backend=backend,
                state="run",
                index=index,
                device=f"{device.name} ({device.kind}, {device.compute_units} units)",
                version=", ".join(part for part in (device.platform, device.driver) if part),
            )
        )
    return findings


def _open(backend: str, index: int) -> DeviceInfo:
    from workers.executor import Executor

    executor = Executor(backend=backend, device_index=index)
    try:
        return executor.start()
    finally:
        executor.close()


def table(findings: Iterable[Finding]) -> str:
    """Lays findings out in columns."""
    rows = [("backend", "state", "device", "version / what to do")]
    for item in findings:
        number = "" if item.index is None else f"{item.index}: "
        rows.append(
            (item.backend, item.state, f"{number}{item.device}", item.version or item.advice)
        )
    return "\n".join(_aligned(rows))


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
