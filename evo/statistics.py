"""Intervals over timing blocks: the one estimate that archive, racing and reports share.

Samples are log ratios, one per interleaved block. Calls inside a block are not independent (they
share clocks, caches and neighbours), so a block, not a call, is the unit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from scipy.special import stdtrit

from evo.archives.base import Interval

SINGLE_BLOCK_HALF_WIDTH = math.log(2.0)
"""Half-width given to a single block, whose spread nobody knows: a factor of two either way."""


def interval(samples: Sequence[float], confidence: float = 0.95) -> Interval:
    """Returns the mean of block values with Student's t interval.

    Args:
        samples: (blocks,) log ratios, one per block.
        confidence: Probability that the interval covers the true mean, if blocks are independent
            and near normal.

    Returns:
        The interval; zero wide when all blocks are equal, and `SINGLE_BLOCK_HALF_WIDTH` either
        way when there is one block only.

    Raises:
        ValueError: If there are no samples, one is not finite, or confidence is not in (0, 1).
    """
    if not samples:
        raise ValueError("an interval needs at least one sample")
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")
    if not all(math.isfinite(sample) for sample in samples):
        raise ValueError("an interval needs finite samples")
    count = len(samples)
    # Subtracting the first sample keeps equal samples exactly equal to their mean.
    origin = samples[0]
    shifted = [sample - origin for sample in samples]
    offset = math.fsum(shifted) / count
    mean = origin + offset
    if count == 1:
        return Interval(
            mean=mean,
            low=mean - SINGLE_BLOCK_HALF_WIDTH,
            high=mean + SINGLE_BLOCK_HALF_WIDTH,
            blocks=1,
        )
    variance = math.fsum((value - offset) ** 2 for value in shifted) / (count - 1)
    half_width = _t_quantile(count - 1, confidence) * math.sqrt(variance / count)
    return Interval(mean=mean, low=mean - half_width, high=mean + half_width, blocks=count)


@lru_cache(maxsize=1024)
def _t_quantile(degrees: int, confidence: float) -> float:
    return float(stdtrit(degrees, 0.5 + confidence / 2.0))
