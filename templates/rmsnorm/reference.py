"""RMSNorm (Zhang and Sennrich, 2019) over the last axis, from its definition."""

from __future__ import annotations

import torch


def reference(
    inputs: dict[str, torch.Tensor], dims: dict[str, int], scalars: dict[str, float]
) -> dict[str, torch.Tensor]:
    """Returns y = x / sqrt(mean(x^2) + eps) * w along each row.

    Args:
        inputs: `x`, (rows, cols), and `w`, (cols,).
        dims: `rows` and `cols`.
        scalars: `eps`.

    Returns:
        `y`, (rows, cols).
    """
    x, w = inputs["x"], inputs["w"]
    mean_square = (x * x).mean(dim=1, keepdim=True)
    return {"y": x / torch.sqrt(mean_square + scalars["eps"]) * w}
