from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.templates.kernels import Bench


@pytest.fixture(scope="session")
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.close()
