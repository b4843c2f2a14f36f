"""Guards and poison: what is damaged is seen, what is not is not."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evo.errors import TaskError
from evo.job import Launch, Scratch, WorkloadProgram
from workers.measure import buffers
from workers.measure.buffers import DTYPES, GUARD_BYTES, Layout, Poison
from workers.measure.memory_plan import MemoryPlan

FLOATS = ["float16", "float32", "float64"]
seeds = st.integers(0, 2**62)


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


@given(st.sampled_from(FLOATS), seeds)
def test_nan_poison_is_nan_but_not_the_one_arithmetic_gives(dtype, seed):
    bits = buffers.poison_bits(dtype, Poison.NAN, rng(seed))
    value = np.frombuffer(bits, dtype=dtype)
    assert np.isnan(value[0])
    with np.errstate(all="ignore"):
        ordinary = np.array([np.nan, -np.nan, np.inf - np.inf], dtype=dtype)
    assert buffers.count_unwritten(buffers.raw_bytes(ordinary), bits) == 0


@given(st.sampled_from(FLOATS), seeds)
def test_large_poison_is_finite_and_large(dtype, seed):
    value = np.frombuffer(buffers.poison_bits(dtype, Poison.LARGE, rng(seed)), dtype=dtype)[0]
    assert np.isfinite(value)
    assert float(value) > float(np.finfo(dtype).max) ** 0.9


@given(seeds)
def test_bfloat16_poisons_have_the_right_exponents(seed):
    nan = int.from_bytes(buffers.poison_bits("bfloat16", Poison.NAN, rng(seed)), "little")
    large = int.from_bytes(buffers.poison_bits("bfloat16", Poison.LARGE, rng(seed)), "little")
    as_float = np.array([nan << 16, large << 16], dtype=np.uint32).view(np.float32)
    assert np.isnan(as_float[0])
    assert 1e37 < as_float[1] < np.inf


@given(st.sampled_from(sorted(DTYPES)), st.sampled_from(Poison), seeds, st.data())
def test_unwritten_counts_exactly_the_poisoned_elements(dtype, kind, seed, data):
    bits = buffers.poison_bits(dtype, kind, rng(seed))
    size = len(bits)
    word = np.dtype(f"<u{size}")
    payload = np.frombuffer(bits * 50, dtype=word).copy()
    written = data.draw(st.sets(st.integers(0, 49)))
    for index in written:
        payload[index] ^= 1
    assert buffers.count_unwritten(payload.view(np.uint8), bits) == 50 - len(written)


def test_poison_differs_from_run_to_run():
    generator = rng(1)
    drawn = {buffers.poison_bits("float32", Poison.NAN, generator) for _ in range(20)}
    assert len(drawn) > 15


@given(st.binary(max_size=200), st.integers(1, 300))
def test_guarded_keeps_the_payload_and_its_place(payload, guard_bytes):
    data = np.frombuffer(payload, dtype=np.uint8)
    guard = buffers.guard_block(3, guard_bytes)
    whole = buffers.guarded(data, guard)
    layout = Layout(payload_bytes=data.size, guard_bytes=guard_bytes)
    assert whole.size == layout.total
    np.testing.assert_array_equal(whole[layout.start : layout.end], data)
    assert buffers.guards_intact(whole[: layout.start], whole[layout.end :], guard)


@given(st.integers(0, 599), st.integers(1, 255))
def test_any_changed_guard_byte_is_seen(position, change):
    guard = buffers.guard_block(11, 300)
    both = np.concatenate([guard, guard])
    both[position] ^= change
    assert not buffers.guards_intact(both[:300], both[300:], guard)


def test_input_guard_is_nan_in_every_float_format():
    guard = buffers.input_guard()
    assert guard.size == GUARD_BYTES
    for dtype in FLOATS:
        assert np.isnan(guard.view(dtype)).all()


def test_guard_blocks_depend_on_the_seed_only():
    np.testing.assert_array_equal(buffers.guard_block(5), buffers.guard_block(5))
    assert not np.array_equal(buffers.guard_block(5), buffers.guard_block(6))


@given(st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 4), max_size=3).map(tuple))
def test_bytes_and_tensors_convert_back(dtype, shape):
    tensor = rng(0).integers(0, 100, size=shape).astype(buffers.storage_dtype(dtype))
    raw = buffers.raw_bytes(tensor)
    assert raw.dtype == np.uint8
    assert raw.size == tensor.nbytes
    back = buffers.as_tensor(raw, dtype, shape)
    np.testing.assert_array_equal(back, tensor)
    assert back.shape == shape


def test_strided_tensors_are_laid_out_in_c_order():
    tensor = np.arange(12, dtype=np.int32).reshape(3, 4).T
    np.testing.assert_array_equal(
        buffers.raw_bytes(tensor).view(np.int32), [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]
    )


def test_unknown_dtype_lists_what_is_allowed():
    with pytest.raises(TaskError, match=r"'complex64' is not supported; allowed: float16"):
        buffers.storage_dtype("complex64")


# -- the plan of a whole request -------------------------------------------------------------------

LAUNCH = Launch(entry="k", args=("x", "y"), grid=(1, 1, 1), block=(1, 1, 1))
PROGRAM = WorkloadProgram(
    workload="w",
    source="",
    launches=(LAUNCH,),
    scratch=(Scratch(name="t", dtype="int32", elements=3),),
)
INPUTS = {
    "x": buffers.raw_bytes(np.arange(10, dtype=np.float32)),
    "z": buffers.raw_bytes(np.arange(7, dtype=np.int8)),
}
OUTPUTS = {"y": ("float32", (2, 3)), "w": ("int64", (4,))}


class Memory:
    """Buffers as a faultless child would have them after a run that writes zeros everywhere."""

    def __init__(self, plan: MemoryPlan) -> None:
        self.arm = plan.arm("code", PROGRAM)
        plan.finish()
        self.plan = plan
        guard = buffers.guard_block(plan.guard_seed)
        self.buffers = {
            f"in/{name}": buffers.guarded(payload, buffers.input_guard())
            for name, payload in INPUTS.items()
        }
        for prefix, blanks in (("out", plan.outputs), (self.arm.scratch_group, self.arm.scratch)):
            for blank in blanks:
                zeros = np.zeros(blank.payload_bytes, dtype=np.uint8)
                self.buffers[f"{prefix}/{blank.name}"] = buffers.guarded(zeros, guard)

    def judge(self):
        arena = {}
        for span in (*self.plan.payload_spans, *self.plan.final_spans):
            data = self.buffers[span.buffer][span.start : span.start + span.nbytes]
            assert data.size == span.nbytes
            arena[span.offset] = data.copy()
        return self.plan.judge(lambda offset, nbytes: arena[offset][:nbytes], payloads=True)


@pytest.fixture
def memory() -> Memory:
    return Memory(MemoryPlan(inputs=INPUTS, outputs=OUTPUTS, poison=Poison.NAN))


def test_faultless_run_is_judged_so(memory):
    verdict = memory.judge()
    assert verdict.changed_inputs == ()
    assert verdict.guard_violations == ()
    assert verdict.unwritten == {"y": 0, "w": 0}
    tensors = memory.plan.tensors(verdict)
    assert tensors["y"].shape == (2, 3)
    assert tensors["w"].dtype == np.int64


def test_spans_do_not_overlap(memory):
    spans = sorted((*memory.plan.payload_spans, *memory.plan.final_spans), key=lambda s: s.offset)
    for before, after in itertools.pairwise(spans):
        assert before.offset + before.nbytes <= after.offset


@given(st.data())
def test_any_stray_byte_is_attributed(data):
    memory = Memory(MemoryPlan(inputs=INPUTS, outputs=OUTPUTS, poison=Poison.LARGE))
    name = data.draw(st.sampled_from(sorted(memory.buffers)))
    content = memory.buffers[name]
    layout = Layout(payload_bytes=content.size - 2 * GUARD_BYTES)
    near = st.integers(layout.start - 8, layout.end + 7)
    position = data.draw(st.one_of(near, st.integers(0, content.size - 1)))
    content[position] ^= 0xFF
    verdict = memory.judge()
    kind, short = name.split("/")
    in_payload = layout.start <= position < layout.end
    assert verdict.guard_violations == (() if in_payload else (short,))
    assert verdict.changed_inputs == ((short,) if in_payload and kind == "in" else ())


def test_elements_left_alone_are_counted(memory):
    blank = memory.plan.outputs[0]
    content = memory.buffers["out/y"]
    content[GUARD_BYTES : GUARD_BYTES + 8] = np.frombuffer(blank.poison * 2, dtype=np.uint8)
    assert memory.judge().unwritten == {"y": 2, "w": 0}


def test_equal_arms_share_scratch_and_different_ones_do_not():
    plan = MemoryPlan(inputs=INPUTS, outputs=OUTPUTS, poison=Poison.NAN)
    first, other, again = (plan.arm(key, PROGRAM) for key in ("a", "b", "a"))
    assert first.scratch_group == again.scratch_group != other.scratch_group
