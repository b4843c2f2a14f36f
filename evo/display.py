"""Live progress: a panel on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from evo import formatting
from evo.archives.base import Interval
from evo.errors import ConfigError

DISPLAYS = ("auto", "plain", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressState:
    """What the display shows; built by the driver after every result.

    Attributes:
        title: What runs, e.g. "softmax on opencl".
        device: Device name with its kind of time, see `evo.formatting.device`.
        phase: "search" or "confirm".
        evaluations: Evaluations made, over all sessions.
        budget_evaluations: Most evaluations; None without such a limit.
        elapsed_s: Search time over all sessions, seconds.
        budget_s: Most seconds; None without such a limit.
        resumed_evaluations: Of `evaluations`, those made in earlier sessions.
        resumed_s: Of `elapsed_s`, the seconds spent in earlier sessions.
        status_counts: Evaluation status -> count.
        num_elites: Occupied cells.
        cells: Cells in the archive.
        best: Best elite's log speed-up.
        best_id: Best elite's candidate.
        in_flight: Evaluations running now.
        slots: Evaluations that can run at once.
    """

    title: str
    device: str = ""
    phase: str = "search"
    evaluations: int = 0
    budget_evaluations: int | None = None
    elapsed_s: float = 0.0
    budget_s: float | None = None
    resumed_evaluations: int = 0
    resumed_s: float = 0.0
    status_counts: Mapping[str, int] = field(default_factory=dict)
    num_elites: int = 0
    cells: int = 0
    best: Interval | None = None
    best_id: str = ""
    in_flight: int = 0
    slots: int = 1

    @property
    def valid_rate(self) -> float | None:
        """Share of results that are correct kernels; infrastructure failures do not count."""
        judged = sum(n for status, n in self.status_counts.items() if status != "infra_error")
        return self.status_counts.get("ok", 0) / judged if judged else None

    @property
    def rate(self) -> float | None:
        """Evaluations per second of this session; None until there is something to divide."""
        seconds = self.elapsed_s - self.resumed_s
        done = self.evaluations - self.resumed_evaluations
        return done / seconds if seconds > 0 and done > 0 else None

    @property
    def eta_s(self) -> float | None:
        """Seconds until the first limit is reached; None when that cannot be told."""
        ends = []
        if self.budget_evaluations is not None and self.rate:
            ends.append(max(0, self.budget_evaluations - self.evaluations) / self.rate)
        if self.budget_s is not None:
            ends.append(max(0.0, self.budget_s - self.elapsed_s))
        return min(ends, default=None)

    @property
    def fraction(self) -> float:
        """Share of the budget used: of the limit that is nearer."""
        shares = [0.0]
        if self.budget_evaluations:
            shares.append(self.evaluations / self.budget_evaluations)
        if self.budget_s:
            shares.append(self.elapsed_s / self.budget_s)
        return min(1.0, max(shares))


def failures(state: ProgressState) -> str:
    """Lists failures by status, most frequent first: "incorrect 4, timeout 1"."""
    counts = [(n, status) for status, n in state.status_counts.items() if status != "ok" and n]
    return ", ".join(f"{status} {n}" for n, status in sorted(counts, key=lambda c: (-c[0], c[1])))


def evaluations(state: ProgressState) -> str:
    """Formats evaluations against the budget: "120/300" or "120"."""
    limit = state.budget_evaluations
    return f"{state.evaluations}/{limit}" if limit is not None else str(state.evaluations)


def format_line(state: ProgressState) -> str:
    """Formats the state as one plain line."""
    rate = f"{state.rate:.1f}/s" if state.rate else "-"
    parts = [
        f"{state.phase} {evaluations(state)} evaluations",
        f"valid {formatting.percent(state.valid_rate)}",
        f"cells {state.num_elites}/{state.cells}",
        f"best {formatting.speedup(state.best)}",
        rate,
        f"{formatting.duration(state.elapsed_s)} gone, {formatting.duration(state.eta_s)} left",
    ]
    if failed := failures(state):
        parts.append(f"failed: {failed}")
    return " | ".join(parts)


def render(state: ProgressState) -> RenderableType:
    """Builds the panel shown on a terminal."""
    rate = f"{state.rate:.1f}/s" if state.rate else "-"
    bar = Table.grid(padding=(0, 2), expand=True)
    bar.add_column(ratio=1)
    bar.add_column(justify="right", no_wrap=True)
    bar.add_row(
        ProgressBar(total=1.0, completed=state.fraction),
        f"{evaluations(state)} evaluations, {rate}, "
        f"{formatting.duration(state.elapsed_s)} gone, {formatting.duration(state.eta_s)} left",
    )
    facts = Table.grid(padding=(0, 3))
    for _ in range(4):
        facts.add_column(no_wrap=True)
    facts.add_row(
        _fact("best", formatting.speedup(state.best), "bold green" if state.best else ""),
        _fact("by", state.best_id or "-"),
        _fact("cells", f"{state.num_elites}/{state.cells}"),
        _fact("valid", formatting.percent(state.valid_rate)),
    )
    facts.add_row(
        _fact("in flight", f"{state.in_flight}/{state.slots}"),
        _fact("phase", state.phase),
    )
    failed = failures(state)
    lines: list[RenderableType] = [bar, facts]
    lines.append(_fact("failed", failed or "none", "yellow" if failed else ""))
    return Panel(
        Group(*lines),
        title=Text(state.title, style="bold"),
        subtitle=Text(state.device, style="dim"),
        title_align="left",
        subtitle_align="left",
    )


def _fact(name: str, value: str, style: str = "") -> Text:
    return Text.assemble((f"{name} ", "dim"), (value, style))


class Display(Protocol):
    """Contract of a display; `update` is cheap enough to call after every result."""

    def update(self, state: ProgressState) -> None:
        """Shows a state."""
        ...

    def message(self, text: str) -> None:
        """Prints one line that stays."""
        ...

    def close(self) -> None:
        """Shows the last state for good; idempotent."""
        ...


class NullDisplay:
    """Shows nothing."""

    def update(self, state: ProgressState) -> None:
        """Does nothing."""

    def message(self, text: str) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""


class PlainDisplay:
    """Prints a line at most every `interval_s` seconds, and the last state at the end."""

    def __init__(
        self,
        *,
        console: Console | None = None,
        interval_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console or Console()
        self._interval_s = interval_s
        self._clock = clock
        self._printed_s = -float("inf")
        self._pending: ProgressState | None = None

    def update(self, state: ProgressState) -> None:
        """Prints the state if the last line is old enough, else keeps it for later."""
        self._pending = state
        if self._clock() - self._printed_s >= self._interval_s:
            self._flush()

    def message(self, text: str) -> None:
        """Prints one line."""
        self._print(text)

    def close(self) -> None:
        """Prints the state that was kept back, if any."""
        self._flush()

    def _flush(self) -> None:
        if self._pending is not None:
            self._print(format_line(self._pending))
            self._pending = None
            self._printed_s = self._clock()

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class LiveDisplay:
    """Redraws a panel a few times per second; messages scroll by above it."""

    def __init__(self, *, console: Console | None = None, refresh_per_s: float = 4.0) -> None:
        self._console = console or Console()
        # Few redraws: on a CPU device the display shares the cores that are being timed.
        self._live = Live(console=self._console, refresh_per_second=refresh_per_s, transient=False)
        self._open = False

    def update(self, state: ProgressState) -> None:
        """Shows the state at the next redraw."""
        if not self._open:
            self._live.start()
            self._open = True
        self._live.update(render(state))

    def message(self, text: str) -> None:
        """Prints one line above the panel."""
        self._console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """Leaves the last panel on the screen."""
        if self._open:
            self._open = False
            self._live.stop()


def make_display(kind: str = "auto", *, console: Console | None = None) -> Display:
    """Chooses a display: "auto" is the panel on a terminal and plain lines elsewhere.

    Raises:
        ConfigError: If the kind is unknown.
    """
    if kind not in DISPLAYS:
        raise ConfigError(f"display={kind!r}: allowed are {', '.join(DISPLAYS)}")
    console = console or Console()
    if kind == "none":
        return NullDisplay()
    if kind == "auto" and console.is_terminal:
        return LiveDisplay(console=console)
    return PlainDisplay(console=console)
