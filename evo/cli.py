"""The `kelites` command: a Hydra application on `pkg://conf`.

Exit codes: 0 done, 2 wrong use or an error told on one line, 130 interrupted (the run can be
resumed).
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import hydra
from omegaconf import DictConfig

from evo import __version__, settings
from evo.app import RunResult, run_search
from evo.errors import ConfigError, EvoError

INTERRUPTED = 130

_FLAGS_WITHOUT_JOB = ("--help", "-h", "--hydra-help", "--cfg", "-c", "--info", "-i")


def main() -> None:
    """Runs a search; exits with a code that says how it ended."""
    # Hydra prints a cut traceback for whatever it catches; errors are told here instead.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    try:
        sys.exit(_main(sys.argv[1:]))
    except (EvoError, OSError) as error:
        _tell(_one_line(error))
        sys.exit(2)
    except KeyboardInterrupt:
        print("kelites: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)


def _main(arguments: Sequence[str]) -> int:
    if "--version" in arguments:
        print(f"kelites {__version__}")
        return 0
    args = settings.expand_shorthand(arguments)
    settings.register_resolvers()
    resumed = [arg.partition("=")[2] for arg in args if arg.startswith("resume=")]
    if any(value not in ("", "null") for value in resumed):
        return _resume(resumed, [arg for arg in args if not arg.startswith("resume=")])
    if not any(arg in _FLAGS_WITHOUT_JOB for arg in args):
        # Hydra reports a bad override over several lines; composing first gives one.
        settings.check_overrides([arg for arg in args if not arg.startswith("-")])
    return _search(args)


def _search(args: Sequence[str]) -> int:
    """Hands over to Hydra, which makes the run directory and runs sweeps."""
    failures: list[str] = []

    @hydra.main(version_base="1.3", config_path="pkg://conf", config_name="config")
    def job(config: DictConfig) -> float:
        run_dir = Path(config.run_dir)
        try:
            result = run_search(config, run_dir=run_dir)
        except (EvoError, OSError) as error:
            if not settings.is_multirun():
                _tell(_one_line(error))
                sys.exit(2)  # Hydra would add a line to an exception
            # In a sweep the other jobs go on; Hydra itself would hide all errors but the first.
            failures.append(str(run_dir))
            _tell(f"{run_dir}: {_one_line(error)}")
            with suppress(OSError):
                (run_dir / "error.log").write_text(f"{_one_line(error)}\n", encoding="utf-8")
            return float("nan")
        if code := _exit_code(result):
            sys.exit(code)  # a sweep ends with the job that was interrupted
        return result.qd_score

    sys.argv = [sys.argv[0], *args]
    job()
    if failures:
        _tell(f"{len(failures)} job(s) of the sweep failed")
    return 2 if failures else 0


def _resume(run_dirs: Sequence[str], args: Sequence[str]) -> int:
    if len(run_dirs) > 1:
        raise ConfigError("resume: one run directory at a time is allowed")
    if flags := [arg for arg in args if arg.startswith("-")]:
        raise ConfigError(f"{flags[0]} does not go with resume=")
    run_dir = Path(run_dirs[0])
    config = settings.saved_config(run_dir, args)
    logging.basicConfig(level=logging.WARNING)
    return _exit_code(run_search(config, run_dir=run_dir, resume=True))


def _exit_code(result: RunResult) -> int:
    return INTERRUPTED if result.status == "stopped" else 0


def _one_line(error: EvoError | OSError) -> str:
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(text.split())


def _tell(message: str) -> None:
    print(f"kelites: error: {message}", file=sys.stderr)


if __name__ == "__main__":
    main()
