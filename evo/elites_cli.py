"""The `kelites-elites` command: look at runs, confirm their elites, check tasks.

Exit codes: 0 done, 1 a check did not pass, 2 wrong use or missing run. Errors are one line.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from evo import __version__
from evo.errors import EvoError
from evo.evaluation import EvaluationStatus


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    parser = _parser()
    arguments, others = parser.parse_known_args(argv)
    # argparse takes KEY=VALUE after an option for something unknown.
    if others and (arguments.command != "confirm" or any(item.startswith("-") for item in others)):
        parser.error(f"unrecognized arguments: {' '.join(others)}")
    try:
        if others:
            arguments.overrides += others
        return int(arguments.run(arguments))
    except EvoError as error:
        print(f"kelites-elites: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        return 0
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    from evo.views import SORTS

    parser = argparse.ArgumentParser(prog="kelites-elites", description=__doc__.splitlines()[0])
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    listing = commands.add_parser("list", help="the elites of a run, best first")
    listing.add_argument("run_dir", type=Path)
    listing.add_argument("--sort", choices=SORTS, default="speedup")
    listing.add_argument("--top", type=_positive, default=None, metavar="N")
    listing.set_defaults(run=_list)

    show = commands.add_parser("show", help="one candidate: source, parameters, times, lineage")
    show.add_argument("run_dir", type=Path)
    show.add_argument("candidate", help="an id (c000017), a cell (1-2-0) or best")
    show.set_defaults(run=_show)

    failures = commands.add_parser("failures", help="the candidates that failed, latest first")
    failures.add_argument("run_dir", type=Path)
    failures.add_argument(
        "--status", action="append", default=[], choices=[item.value for item in EvaluationStatus]
    )
    failures.add_argument("--top", type=_positive, default=None, metavar="N")
    failures.set_defaults(run=_failures)

    confirm = commands.add_parser("confirm", help="measure a run's best elites once more")
    confirm.add_argument("run_dir", type=Path)
    confirm.add_argument("--top", type=_positive, default=3, metavar="N")
    confirm.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help="e.g. workers=[host:port]"
    )
    confirm.set_defaults(run=_confirm)

    task = commands.add_parser("task", help="list or check tasks")
    actions = task.add_subparsers(dest="action", required=True, metavar="ACTION")
    actions.add_parser("list", help="the tasks shipped").set_defaults(run=_task_list)
    check = actions.add_parser("check", help="render every template, lint the task's own checks")
    check.add_argument("name", help="a shipped task, or a path to a task folder")
    check.add_argument("--backend", default="opencl")
    check.set_defaults(run=_task_check)
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _console() -> Console:
    """A console as wide as the terminal; in a pipe wide enough that no column is cut."""
    console = Console()
    return console if console.is_terminal else Console(width=200)


def _list(arguments: argparse.Namespace) -> int:
    from evo.views import elites_table, load_run

    view = load_run(arguments.run_dir)
    _console().print(elites_table(view, sort=arguments.sort, top=arguments.top))
    return 0


def _show(arguments: argparse.Namespace) -> int:
    from evo.views import candidate_view, find_candidate, load_run

    view = load_run(arguments.run_dir)
    _console().print(candidate_view(view, find_candidate(view, arguments.candidate)))
    return 0


def _failures(arguments: argparse.Namespace) -> int:
    from evo.views import failures_table, load_run

    statuses = [EvaluationStatus(item) for item in arguments.status]
    _console().print(failures_table(load_run(arguments.run_dir), statuses, arguments.top))
    return 0


def _confirm(arguments: argparse.Namespace) -> int:
    from evo.confirm import confirm_lines, confirm_table
    from evo.reconfirm import reconfirm

    rows = reconfirm(arguments.run_dir, top=arguments.top, overrides=arguments.overrides)
    console = Console()
    if console.is_terminal:
        console.print(confirm_table(rows))
    else:
        print("\n".join(confirm_lines(rows)))
    return 0 if all(row.confirmed for row in rows) else 1


def _task_list(arguments: argparse.Namespace) -> int:
    from evo.task import list_tasks, load_task

    for name in list_tasks():
        print(f"{name:<14} {load_task(name).description}")
    return 0


def _task_check(arguments: argparse.Namespace) -> int:
    from evo.task import load_task
    from evo.taskcheck import check_templates
    from workers.measure.lint import lint_task

    task = load_task(arguments.name)
    passed = True
    for check in check_templates(task, arguments.backend):
        passed &= not check.error
        verdict = check.error or f"{check.corners} corners rendered on every workload"
        mark = "FAIL" if check.error else "ok  "
        print(f"{mark} {check.template}: {verdict} ({check.space} valid points)")
    report = lint_task(task)
    for item in report.checks:
        passed &= item.passed
        print(f"{'ok  ' if item.passed else 'FAIL'} {item.name}: {item.detail}")
    print(
        f"tolerance {report.tolerance:.2e}, natural error {report.natural_error:.2e}, "
        f"nearest wrong answer {report.nearest_mutant:.2e}"
    )
    print(f"task {task.name}: {'sound' if passed else 'refused'}")
    return 0 if passed else 1
