"""What every test run shows at its end."""

from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Lists the hostile kernels that ran, with the status each of them got."""
    reports = [
        report for kind in ("passed", "failed") for report in terminalreporter.getreports(kind)
    ]
    rows = [dict(report.user_properties) for report in reports if report.when == "call"]
    kernels = [row for row in rows if "hostile_kernel" in row]
    if kernels:
        terminalreporter.section("hostile kernels")
        for row in kernels:
            verdict = f"{row['status']:<14} {row['message']}"
            terminalreporter.write_line(f"{row['hostile_kernel']:<26} {verdict}")
