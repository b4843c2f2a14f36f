"""MLflow as a view of the run: numbers per step, the archive, and a child run per final elite.

`MlflowClient` with explicit run ids (the fluent API's active run belongs to a thread), all writes
in one background thread, MLflow imported only when a run starts (it takes seconds).
"""

from __future__ import annotations

import functools
import getpass
import json
import logging
import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evo import formatting
from evo.archives.base import Archive, Elite
from evo.confirm import ConfirmRow, confirm_lines
from evo.descriptor import DEFAULT_DESCRIPTOR, cell_key
from evo.errors import ConfigError
from evo.lineage import lineage, lineage_text
from evo.serial import to_json
from evo.tracking.base import RunInfo, RunSummary, one_line
from evo.tracking.heatmap import AxisLike, archive_figure, figure_rgb
from evo.tracking.mlflow_uri import redact, resolve_tracking_uri, sqlite_path
from evo.tracking.report import render_report
from evo.tracking.tables import by_speedup, elites_csv, kernel_file
from evo.tracking.writer import Writer

STATE_FILE = "mlflow_run.json"

# MLflow's limits: longer values are cut without a word, larger batches are refused.
_KEY_LIMIT, _PARAM_LIMIT, _TAG_LIMIT, _PARAMS_PER_BATCH = 250, 6000, 5000, 100
_STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}


class MlflowTracker:
    """Writes a run to an MLflow server or database.

    Args:
        tracking_uri: Any MLflow tracking URI; None is a sqlite file in the run directory. Files
            logged to a sqlite URI go to `mlflow-artifacts` beside the database.
        experiment: Name of the experiment, made if missing.
        heatmap_every: Steps between heatmaps and archive files.
        max_children: Most elites that get a child run, best first.
        close_timeout_s: How long `close` waits for the last writes.
        axes: The archive's axes.

    Raises:
        ConfigError: If a number is out of range.
    """

    def __init__(
        self,
        *,
        tracking_uri: str | None = None,
        experiment: str = "kernel-elites",
        heatmap_every: int = 5,
        max_children: int = 64,
        close_timeout_s: float = 60.0,
        axes: Sequence[AxisLike] = DEFAULT_DESCRIPTOR.axes,
    ) -> None:
        if heatmap_every < 1:
            raise ConfigError(f"tracking.heatmap_every={heatmap_every}: must be at least 1")
        if max_children < 0:
            raise ConfigError(f"tracking.max_children={max_children}: must not be negative")
        self._uri = tracking_uri
        self._experiment = experiment
        self._heatmap_every = heatmap_every
        self._max_children = max_children
        self._close_timeout_s = close_timeout_s
        self._axes = tuple(axes)
        self._client: Any = None
        self._experiment_id = ""
        self._run_id = ""
        self._info: RunInfo | None = None
        self._writer: Writer | None = None
        self._mark_name = "eval/count"
        self._steps_seen: dict[int, float | None] = {}
        self._finished = False

    @property
    def run_id(self) -> str:
        """Id of the parent run; empty before `start`."""
        return self._run_id

    def start(self, info: RunInfo) -> None:
        """Opens the parent run, or the one that an earlier session of this run directory opened.

        Raises:
            ConfigError: If MLflow cannot use the tracking URI.
        """
        uri = resolve_tracking_uri(self._uri or f"sqlite:///{info.run_dir.absolute()}/mlflow.db")
        self._info = info
        try:
            self._client = _make_client(uri)
            self._experiment_id = self._find_experiment(uri, info)
            self._run_id = self._reopen(uri, info) or self._open(info)
        except Exception as error:
            raise ConfigError(
                f"tracking_uri={redact(uri)!r}: MLflow cannot use it ({one_line(error)}); "
                "tracking=none runs without MLflow"
            ) from None
        state = {"tracking_uri": redact(uri), "experiment_id": self._experiment_id}
        text = json.dumps({**state, "run_id": self._run_id}, indent=2)
        (info.run_dir / STATE_FILE).write_text(text + "\n", encoding="utf-8")
        self._writer = Writer("MLflow")

    def step(self, step: int, metrics: Mapping[str, float], archive: Archive) -> None:
        """Queues one batch of metrics and, every few steps, the archive."""
        values = metric_names(metrics)
        mark = values.get(self._mark_name)
        # A resumed search tells the steps of earlier sessions again; only a last step that was cut
        # short, and is complete now, is news.
        if self._writer is None or (step in self._steps_seen and self._steps_seen[step] == mark):
            return
        self._steps_seen[step] = mark
        now_ms = time.time_ns() // 1_000_000
        self._writer.submit(
            functools.partial(self._write_metrics, self._run_id, values, step=step, now_ms=now_ms)
        )
        if step % self._heatmap_every == 0:
            self._writer.submit(functools.partial(self._write_archive, tuple(archive), step))

    def finish(self, summary: RunSummary) -> None:
        """Queues the outcome: report, sources and a child run per elite."""
        if self._writer is not None:
            self._finished = True
            self._writer.submit(functools.partial(self._write_end, summary), droppable=False)

    def close(self) -> None:
        """Waits for the queue; a run that never finished is marked KILLED."""
        writer, self._writer = self._writer, None
        if writer is None:
            return
        if not self._finished:
            writer.submit(
                functools.partial(self._client.set_terminated, self._run_id, "KILLED"),
                droppable=False,
            )
        writer.close(self._close_timeout_s)

    # --- opening -------------------------------------------------------------------------------

    def _find_experiment(self, uri: str, info: RunInfo) -> str:
        found = self._client.get_experiment_by_name(self._experiment)
        if found is None:
            location = _artifact_location(uri, info.run_dir)
            try:
                # The tag makes the UI open with runs and charts, not with traces and judges.
                tags = {"mlflow.experimentKind": "custom_model_development"}
                return str(self._client.create_experiment(self._experiment, location, tags))
            except Exception:  # another search may have made it in the meantime
                found = self._client.get_experiment_by_name(self._experiment)
                if found is None:
                    raise
        if found.lifecycle_stage != "active":
            raise ConfigError(f"experiment {self._experiment!r} was deleted; choose another name")
        return str(found.experiment_id)

    def _open(self, info: RunInfo) -> str:
        tags = {
            "mlflow.source.name": info.command,
            "mlflow.source.type": "LOCAL",
            "mlflow.source.git.commit": info.git_sha,
            "mlflow.user": _user(),
            "kelites.kind": "search",
            "kelites.task": info.task,
            "kelites.backend": info.backend,
            "kelites.device": info.device.name,
            "kelites.device_kind": info.device.kind,
            "kelites.driver": info.device.driver,
            "kelites.platform": info.device.platform,
            "kelites.seed": str(info.seed),
            "kelites.run_dir": str(info.run_dir),
            **{f"kelites.version.{name}": version for name, version in info.versions.items()},
        }
        tags = {name: value[:_TAG_LIMIT] for name, value in tags.items() if value}
        run = self._client.create_run(self._experiment_id, run_name=info.run_name, tags=tags)
        run_id = str(run.info.run_id)
        self._write_params(run_id, info.config)
        self._client.log_text(run_id, info.resolved_yaml, "config/resolved.yaml")
        return run_id

    def _reopen(self, uri: str, info: RunInfo) -> str:
        """Returns the run of an earlier session, set running again; "" if there is none here."""
        path = info.run_dir / STATE_FILE
        if not path.is_file():
            return ""
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
            if state["tracking_uri"] != redact(uri):
                return ""
            run = self._client.get_run(state["run_id"])
        except Exception:  # unreadable, or deleted in MLflow: a new run is the honest answer
            return ""
        if run.info.lifecycle_stage != "active":
            return ""
        run_id = str(run.info.run_id)
        self._experiment_id = str(run.info.experiment_id)
        self._client.update_run(run_id, status="RUNNING")
        sessions = int(run.data.tags.get("kelites.sessions", "1")) + 1
        self._client.set_tag(run_id, "kelites.sessions", str(sessions))
        self._client.log_text(run_id, info.resolved_yaml, f"config/resolved_{sessions}.yaml")
        if self._mark_name in run.data.metrics:
            history = self._client.get_metric_history(run_id, self._mark_name)
            self._steps_seen = {int(metric.step): float(metric.value) for metric in history}
        return run_id

    # --- writing, in the writer thread -----------------------------------------------------------

    def _write_params(self, run_id: str, params: Mapping[str, object]) -> None:
        from mlflow.entities import Param

        entries = [
            Param(_key(name), formatting.value_text(value)[:_PARAM_LIMIT])
            for name, value in {_key(n): v for n, v in params.items()}.items()
        ]
        for start in range(0, len(entries), _PARAMS_PER_BATCH):
            self._client.log_batch(run_id, params=entries[start : start + _PARAMS_PER_BATCH])

    def _write_metrics(
        self, run_id: str, metrics: Mapping[str, float], *, step: int = 0, now_ms: int | None = None
    ) -> None:
        from mlflow.entities import Metric

        stamp_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        entries = [
            # MLflow's tables show every digit; six are more than any measurement here has.
            Metric(_key(name), float(f"{value:.6g}"), stamp_ms, step)
            for name, value in metrics.items()
            if math.isfinite(value)  # MLflow would store infinity as 1.8e308
        ]
        if entries:
            self._client.log_batch(run_id, metrics=entries)

    def _figure(self, elites: Sequence[Elite], note: str) -> Any:
        info = self._info
        assert info is not None
        return archive_figure(
            elites,
            self._axes,
            f"{info.task} on {info.backend}: {len(elites)} cells, {note}",
            formatting.device(info.device),
        )

    def _write_archive(self, elites: Sequence[Elite], step: int) -> None:
        picture = figure_rgb(self._figure(elites, f"step {step}"))
        self._client.log_image(self._run_id, picture, key="archive/heatmap", step=step)
        self._write_archive_files(elites)

    def _write_archive_files(self, elites: Sequence[Elite]) -> None:
        names = [axis.name for axis in self._axes]
        self._client.log_text(self._run_id, elites_csv(elites, names), "archive/archive.csv")
        text = to_json(list(elites)).decode()
        self._client.log_text(self._run_id, text, "archive/archive.json")

    def _write_end(self, summary: RunSummary) -> None:
        info = self._info
        assert info is not None
        client, run_id = self._client, self._run_id
        elites = by_speedup(summary.elites)
        self._write_metrics(run_id, _final_metrics(summary), step=max(self._steps_seen, default=0))
        self._write_archive_files(elites)
        # As step 0 of its own key: the UI's image chart opens at step 0 and shows nothing else.
        picture = self._figure(elites, f"{summary.evaluations} evaluations")
        client.log_image(run_id, figure_rgb(picture), key="archive/final", step=0)
        client.log_text(run_id, render_report(info, summary, self._axes), "report.html")
        if summary.confirm:
            rows = to_json(list(summary.confirm)).decode()
            client.log_text(run_id, rows, "confirm/confirm.json")
            client.log_text(run_id, "\n".join(confirm_lines(summary.confirm)), "confirm/table.txt")
        for elite in elites:
            if source := summary.sources.get(elite.candidate.id):
                name = kernel_file(elite.candidate.id, info.backend)
                client.log_text(run_id, source, f"elites/{name}")
        client.set_tag(run_id, "mlflow.note.content", _note(info, summary, elites)[:_TAG_LIMIT])
        client.set_tag(run_id, "kelites.outcome", summary.message or summary.status)
        self._drop_children()
        confirmed = {row.candidate.id: row for row in summary.confirm}
        for elite in elites[: self._max_children]:
            self._write_child(elite, info, summary, confirmed.get(elite.candidate.id))
        client.set_terminated(run_id, _STATUS[summary.status])

    def _drop_children(self) -> None:
        """Removes the elites of an earlier session, which this one's replace."""
        found = self._client.search_runs(
            [self._experiment_id],
            filter_string=f"tags.mlflow.parentRunId = '{self._run_id}'",
            max_results=1000,
        )
        for run in found:
            self._client.delete_run(run.info.run_id)

    def _write_child(
        self, elite: Elite, info: RunInfo, summary: RunSummary, row: ConfirmRow | None
    ) -> None:
        client, candidate = self._client, elite.candidate
        run = client.create_run(
            self._experiment_id,
            run_name=f"{candidate.id} cell {cell_key(elite.cell)}",
            tags={
                "mlflow.parentRunId": self._run_id,
                "mlflow.user": _user(),
                "mlflow.source.name": info.command or "kelites",
                "kelites.kind": "elite",
                "kelites.candidate": candidate.id,
                "kelites.task": info.task,
                "kelites.backend": info.backend,
                "kelites.device": info.device.name,
                "kelites.device_kind": info.device.kind,
                "kelites.confirm": row.verdict if row else "not confirmed",
            },
        )
        run_id = run.info.run_id
        params: dict[str, object] = {
            "template": candidate.genome.template,
            "operator": candidate.operator,
            "cell": cell_key(elite.cell),
        }
        for axis, level in zip(self._axes, elite.cell, strict=False):
            params[f"cell.{axis.name}"] = axis.levels[level]
        params.update({f"param.{name}": v for name, v in candidate.genome.params.items()})
        self._write_params(run_id, params)
        self._write_metrics(run_id, _elite_metrics(elite, row))
        if source := summary.sources.get(candidate.id):
            client.log_text(run_id, source, kernel_file("kernel", info.backend))
        ancestry = lineage(candidate.id, {candidate.id: candidate, **summary.candidates})
        client.log_text(run_id, lineage_text(ancestry) + "\n", "lineage.txt")
        client.log_text(run_id, to_json(elite).decode(), "elite.json")
        client.set_terminated(run_id, "FINISHED")


def _make_client(uri: str) -> Any:
    """Imports MLflow, silenced: no telemetry, no log lines on the terminal, no long retries."""
    for name, value in (
        ("MLFLOW_DISABLE_TELEMETRY", "true"),
        ("DO_NOT_TRACK", "true"),
        ("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false"),
        ("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2"),
        ("MLFLOW_HTTP_REQUEST_TIMEOUT", "20"),
    ):
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return MlflowClient(tracking_uri=uri)


def _artifact_location(uri: str, run_dir: Path) -> str | None:
    """Says where files go: a server decides for itself, a database's go beside it."""
    if uri.startswith("sqlite"):
        return (sqlite_path(uri).parent / "mlflow-artifacts").as_uri()
    if uri.startswith(("http", "databricks")):
        return None
    return (run_dir.absolute().parent / "mlflow-artifacts").as_uri()


def metric_names(row: Mapping[str, float]) -> dict[str, float]:
    """Names a logbook row's numbers for MLflow, whose charts are grouped by the part before "/".

    Logs of speed-ups that people look at become factors. Names with a "/" are left alone.
    """
    named: dict[str, float] = {}
    for name, value in row.items():
        if "/" in name:
            named[name] = float(value)
        elif name in ("best_mean", "best_low", "best_high"):
            suffix = name.removeprefix("best").removesuffix("_mean")
            named[f"qd/best_speedup{suffix}"] = math.exp(value)
        elif name == "evaluations":
            named["eval/count"] = float(value)
        elif name.startswith("status_"):
            named[f"eval/{name.removeprefix('status_')}"] = float(value)
        elif name in ("coverage", "qd_score", "num_elites"):
            named[f"qd/{name}"] = float(value)
        elif name != "step":
            named[f"eval/{name}"] = float(value)
    return named


def _key(name: str) -> str:
    """Keeps the letters MLflow allows in names."""
    return re.sub(r"[^\w\-. /:]", "_", name)[:_KEY_LIMIT]


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no such user, as in many containers
        return "unknown"


def _elite_metrics(elite: Elite, row: ConfirmRow | None) -> dict[str, float]:
    objective = elite.objective
    metrics = {
        "speedup": math.exp(objective.mean),
        "speedup_low": math.exp(objective.low),
        "speedup_high": math.exp(objective.high),
        "blocks": float(objective.blocks),
    }
    timing = elite.evaluation.timing
    for item in timing.workloads if timing else ():
        metrics[f"latency_us/{item.workload}"] = item.latency_us
        metrics[f"baseline_us/{item.workload}"] = item.baseline_us
        if item.sol_fraction is not None:
            metrics[f"sol_fraction/{item.workload}"] = item.sol_fraction
    if row is not None and row.interval is not None:
        metrics["confirm/speedup"] = math.exp(row.interval.mean)
        metrics["confirm/speedup_low"] = math.exp(row.interval.low)
        metrics["confirm/speedup_high"] = math.exp(row.interval.high)
        for entry in row.workloads:
            metrics[f"confirm/latency_us/{entry.workload}"] = entry.latency_us
    return metrics


def _final_metrics(summary: RunSummary) -> dict[str, float]:
    stats = summary.stats
    metrics = {
        "final/evaluations": float(summary.evaluations),
        "final/elapsed_s": summary.elapsed_s,
        "final/cells": float(stats.num_elites),
        "final/coverage": stats.coverage,
        "final/qd_score": stats.qd_score,
    }
    if stats.best is not None:
        metrics["final/best_speedup"] = math.exp(stats.best.mean)
        metrics["final/best_speedup_low"] = math.exp(stats.best.low)
    lows = [row.interval.low for row in summary.confirm if row.interval is not None]
    if lows:
        metrics["final/confirmed_speedup_low"] = math.exp(max(lows))
    return metrics


def _note(info: RunInfo, summary: RunSummary, elites: Sequence[Elite]) -> str:
    """Describes the run in Markdown, shown at the top of its page."""
    verdicts = {row.candidate.id: row for row in summary.confirm}
    lines = [
        f"**{info.task}** on {info.backend}, {formatting.device(summary.device)}: "
        f"{summary.evaluations} evaluations, {summary.stats.num_elites} of "
        f"{summary.stats.cells} cells. {summary.message}",
        "",
        "| elite | cell | search | confirmed | template |",
        "|---|---|---|---|---|",
    ]
    for elite in elites[:10]:
        row = verdicts.get(elite.candidate.id)
        confirmed = f"{formatting.speedup(row.interval)} {row.verdict}" if row else "-"
        lines.append(
            f"| {elite.candidate.id} | {cell_key(elite.cell)} "
            f"| {formatting.speedup(elite.objective)} | {confirmed} "
            f"| {elite.candidate.genome.template} |"
        )
    return "\n".join(lines)
