from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from evo import constraints
from evo.errors import SpaceError, TemplateError
from evo.expressions import evaluate
from evo.job import DeviceInfo
from evo.params import Param, flag, listed, pow2, stepped
from evo.space import Space, SpaceSize


def brute_force(space: Space) -> list[dict]:
    """All valid points by trying the whole product."""
    found = []
    for values in itertools.product(*(param.values for param in space.params)):
        point = {param.name: value for param, value in zip(space.params, values, strict=True)}
        if all(
            evaluate(text, {**c, **point}) for text in space.constraints for c in space.contexts
        ):
            found.append(point)
    return found


def small_space(**kwargs) -> Space:
    return Space(
        params=[
            pow2("wg", 16, 256, 64),
            listed("vec", [1, 2, 4, 8], 4),
            stepped("unroll", 1, 8, 1, 1),
            flag("cache", False),
            listed("mode", ["row", "column", "tile"], "row"),
        ],
        constraints=["wg * vec <= 512", "mode != 'tile' or cache"],
        **kwargs,
    )


def large_space(constraint: str = "a * b * c * d * e * f * g <= 4096") -> Space:
    """A product of 10^7 points, all seven parameters coupled."""
    return Space(params=[pow2(name, 1, 512, 1) for name in "abcdefg"], constraints=[constraint])


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


# --- Parameters ----------------------------------------------------------------------------------


def test_kinds_list_their_values():
    assert pow2("p", 4, 32, 8).values == (4, 8, 16, 32)
    assert stepped("p", 1, 8, 3, 4).values == (1, 4, 7)
    assert flag("p", True).values == (False, True)
    assert listed("p", [8, 4, 1], 4).ordered
    assert not listed("p", [8, 1, 4], 4).ordered
    assert not listed("p", ["a", "b"], "a").ordered


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: pow2("p", 3, 8, 8), "3 is not a power of two"),
        (lambda: pow2("p", 0, 8, 8), "0 is not a power of two"),
        (lambda: stepped("p", 1, 8, 0, 1), "step 0"),
        (lambda: stepped("p", 1, 10**9, 1, 1), "more than 4096"),
        (lambda: stepped("p", 1, 8, 2, 2), "default 2 is not one of 1, 3, 5, 7"),
        (lambda: listed("p", [], 1), "no value"),
        (lambda: listed("p", [1, 1], 1), "twice"),
        (lambda: listed("p", [1, True], 1), "mixes"),
        (lambda: listed("p", [1, 2], 1.0), "default 1.0"),
    ],
)
def test_bad_parameters_are_refused(make, reason):
    with pytest.raises(SpaceError, match=reason):
        make()


def test_values_of_another_type_are_not_members():
    space = Space(params=[listed("p", [0, 1], 1)])
    assert space.is_valid({"p": 1})
    assert not space.is_valid({"p": True})
    assert not space.is_valid({"p": 1.0})


# --- Validity ------------------------------------------------------------------------------------


def test_violated_says_what_is_wrong():
    space = small_space()
    good = space.defaults()
    assert space.violated(good) is None
    assert "did you mean 'wg'" in space.violated({**good, "wgs": 1})
    assert "vec is missing" in space.violated({k: v for k, v in good.items() if k != "vec"})
    assert "7 is not one of 1, 2, 4, 8" in space.violated({**good, "vec": 7})
    assert "'wg * vec <= 512'" in space.violated({**good, "wg": 256, "vec": 8})


def test_a_constraint_must_hold_in_every_context():
    params = [stepped("tile", 1, 8, 1, 1)]
    contexts = [{"rows": 12}, {"rows": 18}]
    space = Space(params=params, constraints=["rows % tile == 0"], contexts=contexts)
    assert [point["tile"] for point in space.enumerate()] == [1, 2, 3, 6]


def test_contexts_that_look_the_same_are_checked_once():
    device = DeviceInfo(backend="opencl", name="x", kind="cpu", max_work_group_size=64)
    contexts = [{"rows": rows, "device": device} for rows in range(1, 50)]
    space = Space(
        params=[pow2("wg", 1, 256, 256)],
        constraints=["wg <= device.max_work_group_size"],
        contexts=contexts,
    )
    before = space.constraint_evaluations
    assert space.is_valid({"wg": 64})
    assert space.constraint_evaluations == before + 1
    assert space.defaults() == {"wg": 64}  # the declared default is too large for this device


def test_a_point_where_a_constraint_cannot_be_computed_is_invalid():
    space = Space(params=[stepped("tile", 0, 4, 1, 1)], constraints=["12 % tile == 0"])
    assert [point["tile"] for point in space.enumerate()] == [1, 2, 3, 4]


def test_no_valid_point_names_the_constraint_that_excludes_most():
    params = [pow2("a", 1, 8, 1), pow2("b", 1, 8, 1)]
    with pytest.raises(SpaceError, match=r"'a \* b > 1000' excludes 100 %"):
        Space(params=params, constraints=["a > 1", "a * b > 1000", "b < 8"])


def test_no_valid_point_in_a_large_space_is_an_error_too():
    with pytest.raises(SpaceError, match="excludes 100 %"):
        large_space("a * b * c * d * e * f * g < 1")


def test_a_constraint_without_parameters_decides_alone():
    params = [pow2("a", 1, 8, 1)]
    with pytest.raises(SpaceError, match="whatever the parameters"):
        Space(params=params, constraints=["rows > 64"], contexts=[{"rows": 64}])
    assert Space(params=params, constraints=["rows > 1"], contexts=[{"rows": 2}]).size().count == 4


def test_unknown_names_are_refused_when_the_space_is_made():
    with pytest.raises(TemplateError, match="unknown name 'wgg'.*did you mean 'wg'"):
        Space(params=[pow2("wg", 1, 8, 1)], constraints=["wgg < 4"])
    with pytest.raises(TemplateError, match="unknown name 'rows'"):
        Space(
            params=[pow2("wg", 1, 8, 1)], constraints=["rows < 4"], contexts=[{"rows": 1}, {"n": 1}]
        )


def test_a_parameter_given_twice_is_refused():
    with pytest.raises(SpaceError, match="twice"):
        Space(params=[flag("a", True), flag("a", False)])


def test_no_parameters_is_one_point():
    space = Space(params=[])
    assert list(space.enumerate()) == [{}]
    assert space.size() == SpaceSize(count=1, exact=True)
    assert space.sample(rng()) == {}
    assert space.neighbours({}) == []


# --- Enumeration, size, sampling -----------------------------------------------------------------


def test_enumeration_size_and_product():
    space = small_space()
    points = list(space.enumerate())
    assert {tuple(p.values()) for p in points} == {tuple(p.values()) for p in brute_force(space)}
    assert len(points) == len({tuple(p.values()) for p in points})
    assert space.size() == SpaceSize(count=len(points), exact=True)
    assert space.product_size == 5 * 4 * 8 * 2 * 3
    assert all(list(p) == [param.name for param in space.params] for p in points)


def test_sampling_is_uniform():
    space = small_space()
    points = [tuple(p.values()) for p in space.enumerate()]
    generator = rng(7)
    draws = 20 * len(points)
    counts = Counter(tuple(space.sample(generator).values()) for _ in range(draws))
    assert set(counts) <= set(points)
    chi_square = stats.chisquare([counts[point] for point in points])
    assert chi_square.pvalue > 1e-3


def test_rejection_sampling_is_uniform_too(monkeypatch):
    monkeypatch.setattr(constraints, "LISTED_PRODUCT", 1)
    space = Space(
        params=[stepped("a", 0, 5, 1, 0), stepped("b", 0, 5, 1, 0)], constraints=["a + b <= 5"]
    )
    points = [tuple(p.values()) for p in space.enumerate()]
    generator = rng(3)
    counts = Counter(tuple(space.sample(generator).values()) for _ in range(40 * len(points)))
    assert stats.chisquare([counts[point] for point in points]).pvalue > 1e-3


def test_a_large_space_is_sampled_without_enumerating_it():
    space = large_space()
    assert space.product_size == 10**7
    before = space.constraint_evaluations
    generator = rng(1)
    draws = [space.sample(generator) for _ in range(50)]
    assert (space.constraint_evaluations - before) / len(draws) < 500
    assert all(space.is_valid(point) for point in draws)
    assert len({tuple(point.values()) for point in draws}) == len(draws)


def test_rare_points_of_a_large_space_are_found_by_backtracking():
    space = large_space("a * b * c * d * e * f * g <= 4")  # 36 points of 10^7
    before = space.constraint_evaluations
    generator = rng(1)
    draws = {tuple(space.sample(generator).values()) for _ in range(20)}
    assert (space.constraint_evaluations - before) / 20 < 4 * constraints.REJECTION_TRIES
    assert all(np.prod(point) <= 4 for point in draws)
    assert len(draws) > 5


def test_the_size_of_a_tight_large_space_is_exact():
    # Points with exponents summing to at most 4 in 7 dimensions: C(4 + 7, 7).
    assert large_space("a * b * c * d * e * f * g <= 16").size() == SpaceSize(count=330, exact=True)


def test_a_size_that_cannot_be_counted_is_an_estimate_that_says_so(monkeypatch):
    monkeypatch.setattr(constraints, "COUNT_LIMIT", 500)
    space = Space(
        params=[stepped(name, 1, 30, 1, 1) for name in "abc"], constraints=["a + b + c <= 30"]
    )
    size = space.size()
    assert not size.exact
    assert size.count == pytest.approx(4060, rel=0.2)  # C(30, 3)


def test_independent_parameters_multiply():
    space = Space(params=[stepped(f"p{i}", 1, 100, 1, 1) for i in range(6)])
    assert space.size() == SpaceSize(count=10**12, exact=True)
    assert space.is_valid(space.sample(rng()))
    assert next(space.enumerate()) == {f"p{i}": 1 for i in range(6)}


def test_the_same_seed_gives_the_same_points():
    for make in (small_space, large_space):
        first = [make().sample(generator) for generator in [rng(5)] for _ in range(5)]
        second = [make().sample(generator) for generator in [rng(5)] for _ in range(5)]
        assert first == second
    assert [small_space().sample(rng(s)) for s in range(8)] != [small_space().sample(rng(0))] * 8


# --- Neighbours, repair, corners -----------------------------------------------------------------


def test_neighbours_change_one_parameter_nearest_first():
    space = small_space()
    here = space.defaults()
    moves = space.neighbours(here)
    assert {**here, "wg": 32} in moves
    assert {**here, "wg": 128} in moves
    assert {**here, "wg": 256} not in moves
    assert {**here, "mode": "column"} in moves
    assert {**here, "mode": "tile"} not in moves  # needs cache
    assert all(sum(move[k] != here[k] for k in here) == 1 for move in moves)
    wider = space.neighbours(here, radius=2)
    assert wider[: len(moves)] == moves
    assert {**here, "unroll": 3} in wider[len(moves) :]


def test_neighbours_step_over_invalid_values():
    space = Space(params=[stepped("a", 1, 9, 1, 1)], constraints=["a in [1, 5, 9]"])
    assert space.neighbours({"a": 5}) == [{"a": 1}, {"a": 9}]
    assert space.neighbours({"a": 1}, radius=2) == [{"a": 5}, {"a": 9}]


def test_neighbours_of_a_foreign_point_are_refused():
    with pytest.raises(SpaceError, match="not one of"):
        small_space().neighbours({**small_space().defaults(), "vec": 3})


def test_repair_returns_the_nearest_valid_point():
    space = small_space()
    broken = {"wg": 256, "vec": 8, "unroll": 3, "cache": False, "mode": "row"}
    fixed = space.repair(broken, rng())
    assert (fixed["wg"], fixed["vec"]) in {(128, 4), (64, 8), (256, 2)}
    assert sum(fixed[k] != broken[k] for k in broken) <= 2
    assert (fixed["unroll"], fixed["cache"], fixed["mode"]) == (3, False, "row")


def test_repair_takes_anything():
    space = small_space()
    assert space.repair({}, rng()) == space.defaults()
    assert space.repair({"other": 1, "wg": 70, "vec": None, "mode": 4}, rng()) == space.defaults()
    assert space.repair({"wg": 100.0}, rng())["wg"] == 128


def test_repair_in_a_large_space():
    space = large_space()
    far = space.repair(dict.fromkeys("abcdefg", 512), rng())
    assert space.is_valid(far)
    near = space.repair({"a": 512, "b": 16, "c": 1, "d": 1, "e": 1, "f": 1, "g": 1}, rng())
    assert near["a"] * near["b"] == 4096  # one step away


def test_corners_reach_every_extreme():
    space = small_space()
    corners = list(space.corners())
    assert corners[0] == space.defaults()
    assert all(space.is_valid(point) for point in corners)
    assert len(corners) == len({tuple(p.values()) for p in corners})
    for param in space.params:
        reached = {point[param.name] for point in corners}
        wanted = {param.values[0], param.values[-1]} if param.ordered else set(param.values)
        assert wanted <= reached


def test_corners_stop_at_the_last_value_that_can_be_valid():
    space = Space(
        params=[stepped("a", 1, 9, 1, 1), stepped("b", 1, 9, 1, 1)], constraints=["a + b <= 6"]
    )
    assert max(point["a"] for point in space.corners()) == 5


# --- Properties on random spaces -----------------------------------------------------------------

NAMES = ("a", "b", "c", "d")
CONSTRAINTS = (
    "a * b <= 16",
    "a + c > 2",
    "b % 2 == 0 or c < 3",
    "d != 'x' or a > 1",
    "min(a, b) < 4",
    "ceil_div(b, a) <= n",
    "a <= n",
)


@st.composite
def spaces(draw: st.DrawFn) -> Space | None:
    params: list[Param] = []
    for name in NAMES[:3]:
        kind = draw(st.sampled_from(["pow2", "range", "values"]))
        if kind == "pow2":
            high = draw(st.integers(0, 4))
            params.append(pow2(name, 1, 1 << high, 1 << draw(st.integers(0, high))))
        elif kind == "range":
            high = draw(st.integers(1, 6))
            params.append(stepped(name, 1, high, 1, draw(st.integers(1, high))))
        else:
            values = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4, unique=True))
            params.append(listed(name, values, draw(st.sampled_from(values))))
    params.append(listed("d", ["x", "y"], draw(st.sampled_from(["x", "y"]))))
    texts = draw(st.lists(st.sampled_from(CONSTRAINTS), max_size=4, unique=True))
    contexts = [{"n": n} for n in draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))]
    try:
        return Space(params=params, constraints=texts, contexts=contexts)
    except SpaceError:
        return None


def check_space(space: Space, seed: int) -> None:
    valid = brute_force(space)
    keys = {tuple(point.values()) for point in valid}
    enumerated = [tuple(point.values()) for point in space.enumerate()]
    assert len(enumerated) == len(keys)
    assert set(enumerated) == keys
    assert space.size() == SpaceSize(count=len(keys), exact=True)
    generator = rng(seed)
    sample = space.sample(generator)
    assert tuple(sample.values()) in keys
    for move in space.neighbours(sample):
        assert tuple(move.values()) in keys
        assert sample in space.neighbours(move)  # symmetric
    wish = {p.name: p.values[int(generator.integers(len(p.values)))] for p in space.params}
    repaired = space.repair(wish, generator)
    assert tuple(repaired.values()) in keys

    def distance(point: dict) -> int:
        return sum(
            abs(p.index(point[p.name]) - p.index(wish[p.name]))
            if p.ordered
            else point[p.name] != wish[p.name]
            for p in space.params
        )

    assert distance(repaired) == min(distance(point) for point in valid)
    assert all(tuple(point.values()) in keys for point in space.corners())
    assert tuple(space.defaults().values()) in keys


@given(spaces(), st.integers(0, 1000))
@settings(deadline=None)
def test_any_space(space, seed):
    if space is not None:
        check_space(space, seed)


@given(st.data(), st.integers(0, 1000))
@settings(deadline=None, max_examples=60)
def test_any_space_by_the_methods_for_large_ones(data, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constraints, "LISTED_PRODUCT", 0)
        space = data.draw(spaces())
        if space is not None:
            check_space(space, seed)


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_refused_spaces_are_empty(data):
    made: list[dict] = []
    original = Space.__init__

    def spy(self: Space, **kwargs) -> None:
        made.append(kwargs)
        original(self, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Space, "__init__", spy)
        space = data.draw(spaces())
    if space is None:
        free = Space(params=made[-1]["params"])
        for point in free.enumerate():
            assert not all(
                evaluate(text, {**context, **point})
                for text in made[-1]["constraints"]
                for context in made[-1]["contexts"]
            )
