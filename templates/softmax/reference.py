"""Softmax over the last axis, from its definition."""

from __future__ import annotations

import torch


def reference(
    inputs: dict[str, torch.Tensor], dims: dict[str, int], scalars: dict[str, float]
) -> dict[str, torch.Tensor]:
    """Returns y = exp(x - max(x)) / sum(exp(x - max(x))) along each row.

    Args:
        inputs: `x`, (rows, cols).
        dims: `rows` and `cols`.
        scalars: None used.

    Returns:
        `y`, (rows, cols).
    """
    x = inputs["x"]
    exponentials = torch.exp(x - x.amax(dim=1, keepdim=True))
    return {"y": exponentials / exponentials.sum(dim=1, keepdim=True)}
