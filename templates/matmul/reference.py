"""Matrix product."""

from __future__ import annotations

import torch


def reference(
    inputs: dict[str, torch.Tensor], dims: dict[str, int], scalars: dict[str, float]
) -> dict[str, torch.Tensor]:
    """Returns c = a @ b.

    Args:
        inputs: `a`, (rows, inner), and `b`, (inner, cols).
        dims: `rows`, `cols` and `inner`.
        scalars: None used.

    Returns:
        `c`, (rows, cols).
    """
    return {"c": inputs["a"] @ inputs["b"]}
