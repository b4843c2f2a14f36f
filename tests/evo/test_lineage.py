from __future__ import annotations

from dataclasses import replace

from evo.genome import Candidate
from evo.lineage import lineage, lineage_text
from tests.evo.fakes import make_candidate


def family(*members: Candidate) -> dict[str, Candidate]:
    return {member.id: member for member in members}


SEED = make_candidate(1, operator="seed", params={"wg": 64, "vec": 1, "cache": False})
OTHER = make_candidate(2, operator="seed", template="opencl_tiled", params={"wg": 32})
CHILD = make_candidate(
    3, operator="mutate", params={"wg": 64, "vec": 8, "cache": True}, parents=(SEED.id,)
)
CROSS = make_candidate(
    4,
    operator="switch",
    template="opencl_tiled",
    params={"wg": 128},
    parents=(CHILD.id, OTHER.id),
)


def test_each_step_says_what_changed() -> None:
    text = lineage_text(lineage(CROSS.id, family(SEED, OTHER, CHILD, CROSS)))
    assert text.splitlines() == [
        "c000004  switch  opencl_tiled  template opencl_naive -> opencl_tiled; wg 64 -> 128",
        "  c000003  mutate  opencl_naive  vec 1 -> 8; cache false -> true",
        "    c000001  seed  opencl_naive",
        "  c000002  seed  opencl_tiled",
    ]


def test_an_edited_template_is_a_change() -> None:
    edited = replace(CHILD, genome=replace(SEED.genome, template_hash="other"), parents=(SEED.id,))
    assert lineage(edited.id, family(SEED, edited))[0].changes == ("template text",)


def test_shared_ancestors_appear_once_and_loops_end() -> None:
    left = make_candidate(5, parents=(SEED.id,))
    right = make_candidate(6, parents=(SEED.id, left.id))
    both = make_candidate(7, parents=(left.id, right.id))
    steps = lineage(both.id, family(SEED, left, right, both))
    assert [step.id for step in steps] == ["c000007", "c000005", "c000001", "c000006"]
    first = make_candidate(8, parents=("c000009",))
    second = make_candidate(9, parents=("c000008",))
    assert len(lineage(first.id, family(first, second))) == 2


def test_missing_records_are_marked_and_long_lines_cut() -> None:
    orphan = make_candidate(5, parents=("c000404",))
    assert lineage_text(lineage(orphan.id, family(orphan))).endswith("c000404  (record missing)")
    chain = [make_candidate(n, parents=(f"c{n - 1:06d}",)) for n in range(1, 500)]
    assert len(lineage(chain[-1].id, family(*chain), limit=50)) == 50
