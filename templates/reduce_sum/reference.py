"""Sum of each vector."""

from __future__ import annotations

import torch


def reference(
    inputs: dict[str, torch.Tensor], dims: dict[str, int], scalars: dict[str, float]
) -> dict[str, torch.Tensor]:
    """Returns the sum of each row of x.

    Args:
        inputs: `x`, (vectors, length).
        dims: `vectors` and `length`.
        scalars: None used.

    Returns:
        `total`, (vectors,).
    """
    return {"total": inputs["x"].sum(dim=1)}
