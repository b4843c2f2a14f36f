"""The list for a worker-only install agrees with the package and names all a worker imports."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SEARCH_ONLY = {"deap", "hydra-core", "omegaconf", "mlflow", "matplotlib", "rich"}


def lines(path):
    text = path.read_text(encoding="utf-8")
    return {line for line in text.splitlines() if line and not line.startswith("#")}


def name(requirement):
    return requirement.split(">")[0].split("[")[0]


def test_worker_requirements_are_the_package_s_own_without_the_search_side():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    needed = lines(ROOT / "workers" / "requirements.txt")
    assert needed <= set(project["project"]["dependencies"])
    assert not {name(item) for item in needed} & SEARCH_ONLY


def test_the_command_starts_without_the_search_side():
    blocked = [item.replace("-core", "").replace("-", "_") for item in sorted(SEARCH_ONLY)]
    script = (
        "import sys\n"
        f"for name in {blocked!r}: sys.modules[name] = None\n"
        "from workers.cli import main\n"
        "import workers.server, workers.service, workers.selftest\n"
        "sys.exit(main(['doctor']))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "opencl" in result.stdout
