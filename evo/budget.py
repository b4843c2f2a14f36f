"""When a search ends: evaluations, seconds, stagnation."""

from __future__ import annotations

from dataclasses import dataclass

from evo.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits of one run; None switches a limit off, at least one of the first two must be set.

    Attributes:
        evaluations: Evaluations dispatched, failed ones and duels included; results inherited from
            identical source cost nothing.
        seconds: Search time, summed over resumes.
        stagnation: Stop after this many evaluations in a row without a new or improved cell.

    Raises:
        ConfigError: If a limit is not a positive number or no limit is set.
    """

    evaluations: int | None = 300
    seconds: float | None = None
    stagnation: int | None = None

    def __post_init__(self) -> None:
        for name in ("evaluations", "seconds", "stagnation"):
            value = getattr(self, name)
            number = isinstance(value, int) or (name == "seconds" and isinstance(value, float))
            if value is not None and (isinstance(value, bool) or not number or value <= 0):
                raise ConfigError(
                    f"budget.{name}={value!r}: a positive number or null (no limit) is allowed"
                )
        if self.evaluations is None and self.seconds is None:
            raise ConfigError(
                "budget: set budget.evaluations or budget.seconds, or the run never ends"
            )

    def reason_to_stop(self, *, evaluations: int, elapsed_s: float, stagnant: int) -> str:
        """Returns why the search must stop asking, or "" to go on."""
        if self.evaluations is not None and evaluations >= self.evaluations:
            return f"budget of {self.evaluations} evaluations used"
        if self.seconds is not None and elapsed_s >= self.seconds:
            return f"budget of {self.seconds:g} seconds used"
        if self.stagnation is not None and stagnant >= self.stagnation:
            return f"no new or improved cell in {stagnant} evaluations"
        return ""
