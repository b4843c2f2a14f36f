from __future__ import annotations

import dataclasses

import pytest

from evo.evaluation import EvaluationStatus
from workers import corpus, selftest
from workers.selftest import Check, run_selftest


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer blocks, sessions and kernels: test_hostile.py has the whole corpus."""
    quick = dataclasses.replace(selftest.SETTINGS, min_blocks=3, max_blocks=6)
    monkeypatch.setattr(selftest, "SETTINGS", quick)
    monkeypatch.setattr(selftest, "AA_SESSIONS", 3)
    monkeypatch.setattr(corpus, "CHEATS", corpus.CHEATS[-4:-2])
    monkeypatch.setattr(corpus, "HONEST_CASES", corpus.HONEST_CASES[:1])


def test_selftest_passes_here_and_reports_as_it_goes() -> None:
    seen: list[Check] = []
    checks = run_selftest("opencl", 0, seen.append)
    assert seen == checks
    # Timing checks are left out: a busy machine may fail them, which is what they are for.
    timed = {"A/A: a kernel against itself", "twice the work takes twice as long"}
    assert timed < {check.name for check in checks}
    failed = [check for check in checks if not check.passed and check.name not in timed]
    assert failed == []
    assert all(check.detail and "\n" not in check.detail for check in checks)


def test_selftest_notices_a_check_that_lets_a_cheat_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrongly_trusted = dataclasses.replace(corpus.HONEST_CASE, status=EvaluationStatus.HACK)
    monkeypatch.setattr(corpus, "CHEATS", (wrongly_trusted,))
    verdict = next(c for c in run_selftest("opencl", 0) if c.name == "rejects honest")
    assert not verdict.passed
    assert verdict.detail.startswith("ok, expected hack")
