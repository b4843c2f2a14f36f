"""One sweep of the weighted Jacobi iteration for Laplace's equation."""

from __future__ import annotations

import torch


def reference(
    inputs: dict[str, torch.Tensor], dims: dict[str, int], scalars: dict[str, float]
) -> dict[str, torch.Tensor]:
    """Returns v = (1 - omega) u + omega times the mean of the four neighbours; edges are copied.

    Args:
        inputs: `u`, (height, width).
        dims: `height` and `width`.
        scalars: `omega`, the relaxation weight.

    Returns:
        `v`, (height, width).
    """
    u, omega = inputs["u"], scalars["omega"]
    neighbours = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
    v = u.clone()
    v[1:-1, 1:-1] = (1 - omega) * u[1:-1, 1:-1] + omega * neighbours / 4
    return {"v": v}
