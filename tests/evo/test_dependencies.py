"""The rooms and their doors: who may import whom, and how large a module may grow."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("evo", "operators", "workers", "templates", "conf")
MODULES = sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
GENERATED = ROOT / "workers" / "proto" / "v1"

KNOWS_ALL_ROOMS = ("evo.cli", "evo.elites_cli")
"""Commands wire everything together."""

WORKERS_MAY_USE = (
    *("evo.errors", "evo.evaluation", "evo.job", "evo.serial", "evo.task", "evo.expressions"),
    *("evo.descriptor", "evo.statistics", "evo.archives.base", "evo.evaluator"),
)
CONTROLLER_ONLY = ("hydra", "omegaconf", "mlflow", "deap", "rich", "matplotlib")
OPERATORS_MAY_NOT_USE = ("workers", "hydra", "omegaconf", "mlflow", "grpc", "torch", "pyopencl")


def name_of(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(file: Path) -> Iterator[tuple[int, str]]:
    """Yields (line, module) of every import, those inside functions included."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: relative import"
            yield node.lineno, node.module or ""


def within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == name or module.startswith(name + ".") for name in packages)


def offences(
    package: str, forbidden: tuple[str, ...], *, besides: tuple[str, ...] = ()
) -> list[str]:
    return [
        f"{file.relative_to(ROOT)}:{line} imports {module}"
        for file in MODULES
        if within(name_of(file), (package,)) and name_of(file) not in besides
        for line, module in imports(file)
        if within(module, forbidden)
    ]


def test_the_checks_can_fail(tmp_path):
    file = tmp_path / "module.py"
    file.write_text("import a.b\ndef f():\n    from c import d\n")
    assert list(imports(file)) == [(1, "a.b"), (3, "c")]
    assert any(item.startswith("workers/service.py:") for item in offences("workers", ("evo",)))
    assert "refused: json" in import_without(["json.tool"], ("json",))


def test_the_engine_knows_neither_workers_nor_operators():
    assert offences("evo", ("workers", "operators"), besides=KNOWS_ALL_ROOMS) == []


def test_workers_use_records_only():
    found = [
        f"{file.relative_to(ROOT)}:{line} imports {module}"
        for file in MODULES
        if within(name_of(file), ("workers",))
        for line, module in imports(file)
        if within(module, ("evo",)) and module not in WORKERS_MAY_USE
    ]
    assert found == []


def test_workers_name_no_controller_library():
    assert offences("workers", (*CONTROLLER_ONLY, "operators")) == []


def test_operators_touch_no_device_and_no_network():
    assert offences("operators", OPERATORS_MAY_NOT_USE) == []


def test_only_backends_and_child_name_pyopencl():
    found = [
        offence
        for offence in offences("workers", ("pyopencl",)) + offences("evo", ("pyopencl",))
        if not offence.startswith(("workers/backends/", "workers/child"))
    ]
    assert found == []


@pytest.mark.parametrize("package", ["evo", "operators", "workers"])
def test_no_module_is_longer_than_600_lines(package):
    too_long = {
        name_of(file): count
        for file in MODULES
        if within(name_of(file), (package,)) and not file.is_relative_to(GENERATED)
        if (count := len(file.read_text(encoding="utf-8").splitlines())) > 600
    }
    assert too_long == {}


IMPORT_ALL = """
import importlib.abc, sys

class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {forbidden!r}:
            raise ImportError(f"refused: {{name}}")

sys.meta_path.insert(0, Refuse())
for name in {modules!r}:
    try:
        __import__(name)
    except ImportError as error:
        sys.exit(f"{{name}}: {{error}}")
print(len({modules!r}))
"""


def import_without(modules: list[str], forbidden: tuple[str, ...]) -> str:
    """Imports modules in a fresh interpreter that has not the forbidden packages."""
    process = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL.format(forbidden=list(forbidden), modules=modules)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return process.stdout.strip() + process.stderr.strip()


def modules_of(package: str) -> list[str]:
    return [name_of(file) for file in MODULES if within(name_of(file), (package,))]


def test_workers_import_without_the_controllers_libraries_and_without_a_device():
    modules = modules_of("workers")
    assert import_without(modules, (*CONTROLLER_ONLY, "pyopencl", "torch")) == str(len(modules))


def test_the_search_imports_without_device_network_or_tracking():
    modules = [
        *("evo.task", "evo.template", "evo.render", "evo.space", "evo.journal", "evo.search"),
        *modules_of("operators"),
    ]
    forbidden = ("hydra", "omegaconf", "mlflow", "grpc", "torch", "pyopencl", "matplotlib", "rich")
    assert import_without(modules, forbidden) == str(len(modules))
