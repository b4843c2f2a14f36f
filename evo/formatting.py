"""Numbers as people read them; every table, chart and log line uses these."""

from __future__ import annotations

import math

from evo.archives.base import Interval
from evo.job import DeviceInfo


def ratio(log_value: float) -> str:
    """Formats a log ratio as a factor: "0.081x", "2.31x", "19.4x", "134x"."""
    value = math.exp(min(log_value, 700.0))
    if value < 0.0995:
        return f"{value:.2g}x"
    return f"{_three_digits(value)}x"


def speedup(interval: Interval | None) -> str:
    """Formats a log speed-up with its interval: "2.31x [2.25, 2.38]"; a dash when unknown."""
    if interval is None:
        return "-"
    low, high = ratio(interval.low).rstrip("x"), ratio(interval.high).rstrip("x")
    return f"{ratio(interval.mean)} [{low}, {high}]"


def latency(value_us: float | None) -> str:
    """Formats microseconds with three significant digits in the unit that suits."""
    if value_us is None or not math.isfinite(value_us):
        return "-"
    if value_us < 999.5:
        return f"{_three_digits(value_us)} us"
    if value_us < 999.5e3:
        return f"{_three_digits(value_us / 1e3)} ms"
    return f"{_three_digits(value_us / 1e6)} s"


def _three_digits(value: float) -> str:
    """Rounds to three significant digits, as far as they lie behind the point."""
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f}"


def duration(value_s: float | None) -> str:
    """Formats seconds: "42s", "3m05s", "2h07m"; a dash when unknown."""
    if value_s is None or not math.isfinite(value_s):
        return "-"
    seconds = max(0, round(value_s))
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return f"{seconds // 60}m{seconds % 60:02d}s"
    return f"{seconds // 3600}h{seconds % 3600 // 60:02d}m"


def percent(fraction: float | None) -> str:
    """Formats a fraction as whole percent; a dash when unknown."""
    return "-" if fraction is None or not math.isfinite(fraction) else f"{100 * fraction:.0f}%"


def device(info: DeviceInfo) -> str:
    """Names a device and says what kind of time it gives: "pthread-... (CPU time)"."""
    return f"{info.name} ({time_kind(info.kind)})"


def time_kind(device_kind: str) -> str:
    """Says which kind of time a device's numbers are: a CPU time is never passed off as a GPU's."""
    return {"cpu": "CPU time", "gpu": "GPU time"}.get(device_kind, "device kind unknown")


def params(values: dict[str, bool | int | float | str]) -> str:
    """Formats parameters on one line: "wg=64 vec=4 cache=true"."""
    return " ".join(f"{name}={value_text(value)}" for name, value in values.items())


def value_text(value: object) -> str:
    """Formats one parameter value as YAML would."""
    return str(value).lower() if isinstance(value, bool) else str(value)
