"""The `kelites` command: a Hydra application on `pkg://conf`."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import hydra
from omegaconf import DictConfig

from evo import settings
from evo.app import run_search
from evo.errors import EvoError

_FLAGS_WITHOUT_JOB = ("--help", "-h", "--hydra-help", "--cfg", "-c", "--info", "-i", "--version")


def main() -> None:
    """Runs a search; prints one line and exits with 2 when something is wrong."""
    args = settings.expand_shorthand(sys.argv[1:])
    settings.register_resolvers()
    try:
        resumed = next((arg for arg in args if arg.startswith("resume=")), None)
        if resumed is not None and resumed not in ("resume=null", "resume="):
            sys.exit(_resume(Path(resumed.removeprefix("resume=")), args))
        if not any(arg in _FLAGS_WITHOUT_JOB for arg in args):
            # Hydra reports a bad override over several lines; composing first gives one.
            settings.check_overrides([arg for arg in args if not arg.startswith("-")])
    except EvoError as error:
        _fail(error)
    sys.argv = [sys.argv[0], *args]
    failures: list[str] = []

    @hydra.main(version_base="1.3", config_path="pkg://conf", config_name="config")
    def job(config: DictConfig) -> float:
        try:
            return run_search(config, run_dir=Path(config.run_dir)).qd_score
        except EvoError as error:
            # In a sweep the other jobs go on; Hydra itself would hide all errors but the first.
            _write_status(Path(config.run_dir), str(error))
            if not settings.is_multirun():
                _fail(error)
            failures.append(f"{config.run_dir}: {error}")
            print(f"kelites: error: {error}", file=sys.stderr)
            return float("nan")

    job()
    if failures:
        print(f"kelites: {len(failures)} job(s) of the sweep failed", file=sys.stderr)
        sys.exit(2)


def _resume(run_dir: Path, args: list[str]) -> int:
    overrides = [arg for arg in args if not arg.startswith(("resume=", "-"))]
    config = settings.saved_config(run_dir, overrides)
    logging.basicConfig(level=logging.WARNING)
    return 0 if run_search(config, run_dir=run_dir, resume=True) else 1


def _write_status(run_dir: Path, error: str) -> None:
    if run_dir.is_dir():
        status = {"status": "failed", "error": error}
        (run_dir / "status.json").write_text(json.dumps(status) + "\n", encoding="utf-8")


def _fail(error: EvoError) -> None:
    print(f"kelites: error: {error}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
