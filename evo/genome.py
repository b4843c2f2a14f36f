"""What evolves: a template, its parameter values, and where they came from."""

from __future__ import annotations

from dataclasses import dataclass, field

from evo.serial import content_hash

ParamValue = bool | int | float | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Genome:
    """Device code plus numbers, never host code.

    Attributes:
        template: Name of the template, e.g. "opencl_online" (file `opencl_online.cl.j2`).
        template_hash: Content hash of the template text, so that an edited template is another
            genome.
        params: Parameter name -> value, in the template's order.
    """

    template: str
    template_hash: str
    params: dict[str, ParamValue]

    @property
    def key(self) -> str:
        """Content hash: equal for equal template text and values, whatever the history."""
        return content_hash([self.template_hash, sorted(self.params.items())])


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A genome put forward for evaluation, with its lineage.

    Attributes:
        id: Unique within a run, e.g. "c000017".
        genome: What to evaluate.
        operator: Name of the operator that made it; "seed" for the templates' defaults.
        parents: Ids of the candidates it was made from.
        note: The operator's one-line reason (which parameter moved, which target cell).
    """

    id: str
    genome: Genome
    operator: str
    parents: tuple[str, ...] = field(default=())
    note: str = ""
