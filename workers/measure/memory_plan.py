"""One request's buffers: what the child must copy out, and the verdict on what it did copy out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np
from numpy.typing import NDArray

from evo.job import WorkloadProgram
from workers import frames
from workers.measure.buffers import (
    Bytes,
    Layout,
    Poison,
    as_tensor,
    count_unwritten,
    guard_block,
    guards_intact,
    input_guard,
    poison_bits,
    storage_dtype,
)

OutputSpecs = Mapping[str, tuple[str, tuple[int, ...]]]
"""Name -> dtype, shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the bytes say.

    Attributes:
        payloads: Raw bytes of each output; empty if they were not asked for.
        changed_inputs: Names of inputs whose bytes changed.
        guard_violations: Names of buffers with a damaged guard.
        unwritten: Output name -> elements that still hold the poison.
    """

    payloads: dict[str, Bytes] = field(default_factory=dict)
    changed_inputs: tuple[str, ...] = ()
    guard_violations: tuple[str, ...] = ()
    unwritten: dict[str, int] = field(default_factory=dict)


class MemoryPlan:
    """Lays out the arena for one run or timing request and judges what comes back.

    Guards and poison are drawn from the operating system's entropy: they are secrets, and no result
    depends on them.
    """

    def __init__(
        self, *, inputs: Mapping[str, Bytes], outputs: OutputSpecs, poison: Poison
    ) -> None:
        rng = np.random.default_rng()
        self.guard_seed = int(rng.integers(1 << 62))
        self._rng = rng
        self._poison = poison
        self._inputs = inputs
        self._specs = outputs
        self._groups: dict[object, str] = {}
        self._write_guarded: dict[str, Layout] = {}
        self.outputs = tuple(
            self._blank(name, dtype, prod(shape)) for name, (dtype, shape) in outputs.items()
        )
        for blank in self.outputs:
            self._write_guarded[f"out/{blank.name}"] = Layout(payload_bytes=blank.payload_bytes)
        self._end = 0
        self.payload_spans = tuple(
            self._span(f"out/{blank.name}", Layout(payload_bytes=0).start, blank.payload_bytes)
            for blank in self.outputs
        )
        self.final_spans: tuple[frames.Span, ...] = ()

    def arm(self, code_key: str, program: WorkloadProgram) -> frames.Arm:
        """Describes an arm; equal arms share their scratch buffers."""
        identity = (code_key, program.launches, program.scratch)
        group = self._groups.setdefault(identity, f"scratch{len(self._groups)}")
        scratch = tuple(self._blank(s.name, s.dtype, s.elements) for s in program.scratch)
        for blank in scratch:
            layout = Layout(payload_bytes=blank.payload_bytes)
            self._write_guarded[f"{group}/{blank.name}"] = layout
        return frames.Arm(
            code_key=code_key, launches=program.launches, scratch_group=group, scratch=scratch
        )

    def finish(self) -> None:
        """Fixes what is copied at the very end: inputs in full, all other guards."""
        spans = []
        for name, payload in self._inputs.items():
            layout = Layout(payload_bytes=payload.size)
            spans.append(self._span(f"in/{name}", 0, layout.total))
        for name, layout in self._write_guarded.items():
            spans.append(self._span(name, 0, layout.guard_bytes))
            spans.append(self._span(name, layout.end, layout.guard_bytes))
        self.final_spans = tuple(spans)

    def judge(self, read: Callable[[int, int], Bytes], *, payloads: bool) -> Verdict:
        """Compares the arena with what must be there.

        Args:
            read: Returns the arena's bytes, by offset and count.
            payloads: Outputs were copied out.
        """
        spans = {(s.buffer, s.start): s for s in self.final_spans}

        def bytes_of(name: str, start: int) -> Bytes:
            span = spans[name, start]
            return read(span.offset, span.nbytes)

        changed, violated = [], []
        nan_guard, random_guard = input_guard(), guard_block(self.guard_seed)
        for name, payload in self._inputs.items():
            whole, layout = bytes_of(f"in/{name}", 0), Layout(payload_bytes=payload.size)
            if not guards_intact(whole[: layout.start], whole[layout.end :], nan_guard):
                violated.append(name)
            if not np.array_equal(whole[layout.start : layout.end], payload):
                changed.append(name)
        for name, layout in self._write_guarded.items():
            before, after = bytes_of(name, 0), bytes_of(name, layout.end)
            if not guards_intact(before, after, random_guard):
                violated.append(name.partition("/")[2])
        data, unwritten = {}, {}
        if payloads:
            for blank, span in zip(self.outputs, self.payload_spans, strict=True):
                data[blank.name] = read(span.offset, span.nbytes)
                unwritten[blank.name] = count_unwritten(data[blank.name], blank.poison)
        return Verdict(
            payloads=data,
            changed_inputs=tuple(changed),
            guard_violations=tuple(dict.fromkeys(violated)),
            unwritten=unwritten,
        )

    def tensors(self, verdict: Verdict) -> dict[str, NDArray[np.generic]]:
        """Views the outputs' bytes as tensors."""
        return {
            name: as_tensor(payload, *self._specs[name])
            for name, payload in verdict.payloads.items()
        }

    def _blank(self, name: str, dtype: str, elements: int) -> frames.Blank:
        return frames.Blank(
            name=name,
            payload_bytes=elements * storage_dtype(dtype).itemsize,
            poison=poison_bits(dtype, self._poison, self._rng),
        )

    def _span(self, buffer: str, start: int, nbytes: int) -> frames.Span:
        span = frames.Span(buffer=buffer, start=start, nbytes=nbytes, offset=self._end)
        self._end += nbytes
        return span
