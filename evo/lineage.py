"""Where a candidate came from: its ancestors, as far back as the seeds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from evo.formatting import value_text
from evo.genome import Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Ancestor:
    """One step of a lineage.

    Attributes:
        depth: Generations back; 0 is the candidate itself.
        id: Candidate id.
        candidate: None if its record is missing.
        changes: What differs from its first parent, one short text each.
    """

    depth: int
    id: str
    candidate: Candidate | None
    changes: tuple[str, ...] = ()


def lineage(
    candidate_id: str, candidates: Mapping[str, Candidate], limit: int = 200
) -> tuple[Ancestor, ...]:
    """Walks the ancestors depth first, first parents first; each appears once.

    Args:
        candidate_id: Where to start.
        candidates: Every candidate known, by id.
        limit: Most steps returned.
    """
    steps: list[Ancestor] = []
    seen: set[str] = set()
    stack = [(0, candidate_id)]
    while stack and len(steps) < limit:
        depth, current = stack.pop()
        if current in seen:
            continue
        seen.add(current)
        candidate = candidates.get(current)
        parents = candidate.parents if candidate else ()
        first = candidates.get(parents[0]) if parents else None
        steps.append(
            Ancestor(
                depth=depth,
                id=current,
                candidate=candidate,
                changes=changes(first, candidate) if first and candidate else (),
            )
        )
        stack.extend((depth + 1, parent) for parent in reversed(parents))
    return tuple(steps)


def changes(parent: Candidate, child: Candidate) -> tuple[str, ...]:
    """Lists what a child changed: "vec 4 -> 8", or the template."""
    before, after = parent.genome, child.genome
    found = []
    if before.template != after.template:
        found.append(f"template {before.template} -> {after.template}")
    elif before.template_hash != after.template_hash:
        found.append("template text")
    for name, value in after.params.items():
        if name in before.params and before.params[name] != value:
            found.append(f"{name} {value_text(before.params[name])} -> {value_text(value)}")
    return tuple(found)


def lineage_text(steps: tuple[Ancestor, ...]) -> str:
    """Formats a lineage as an indented list, one ancestor a line."""
    lines = []
    for step in steps:
        text = f"{'  ' * step.depth}{step.id}"
        if step.candidate is None:
            text += "  (record missing)"
        else:
            what = "; ".join(step.changes) or step.candidate.note
            text += f"  {step.candidate.operator}  {step.candidate.genome.template}"
            text += f"  {what}" if what else ""
        lines.append(text)
    return "\n".join(lines)
