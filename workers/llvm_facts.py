"""Counts one function's features from its control and data flow (see `workers/llvm_flow.py`)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from workers.llvm_flow import (
    GRID_POSITION,
    GRID_SIZE,
    Access,
    Base,
    Carried,
    Flow,
    Graph,
    builtin_name,
    control_flow,
    vector_load_width,
    vector_store_width,
)
from workers.llvm_text import Function, Instruction, element_bytes, is_pointer, symbol_in

_FLOAT_OPS = frozenset({"fadd", "fsub", "fmul", "fdiv", "frem", "fneg"})
_INTEGER_OPS = frozenset(
    {"add", "sub", "mul", "udiv", "sdiv", "urem", "srem", "shl", "lshr", "ashr", "and", "or", "xor"}
)
_NOT_ARITHMETIC = re.compile(
    r"^(?:convert_|as_|v?load|v?store|shuffle|select|get_|async_|llvm\.(?:lifetime|mem|dbg|assume))"
)
_BARRIER = re.compile(
    r"^(?:barrier|work_group_barrier|__spirv_ControlBarrier|llvm\.nvvm\.barrier.*"
    r"|llvm\.amdgcn\.s\.barrier.*)$"
)
_WORK_GROUP = re.compile(r"^work_group_(?:reduce|scan|broadcast|all|any|ballot)")
_SUB_GROUP = re.compile(
    r"^(?:intel_)?sub_group_(?!barrier|get|size|id)|^__spirv_(?:Subgroup|GroupNonUniform)"
    r"|^llvm\.nvvm\.(?:shfl|vote|redux|match)"
    r"|^llvm\.amdgcn\.(?:ds\.bpermute|readlane|readfirstlane|update\.dpp|permlane)"
)
_MATRIX = re.compile(
    r"matrix_mad|dpas|__spirv_(?:Joint|Cooperative)Matrix\w*M(?:ad|ul)"
    r"|^llvm\.nvvm\.(?:wmma|mma|wgmma)|^llvm\.amdgcn\.(?:mfma|wmma|smfmac)|^llvm\.x86\.tdp"
)
_ASYNC = re.compile(r"^async_work_group_(?:strided_)?copy$")
_ATOMIC = re.compile(r"^atom(?:ic)?_(?!init|work_item_fence)")
_ATOMIC_OPS = frozenset({"atomicrmw", "cmpxchg"})


@dataclass(slots=True)
class FunctionFacts:
    """One function's features, and what only makes sense over the whole program.

    Attributes:
        counts: Feature name -> count.
        local_uses: (array, "loads" | "stores" | "tile_stores" | "copies_in" | "copies_out").
        waits: Waits for asynchronous copies.
        writes_global: It writes memory others see.
        flow: Its data flow.
    """

    flow: Flow
    counts: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    local_uses: list[tuple[str, str]] = field(default_factory=list)
    waits: int = 0
    writes_global: bool = False


def count_facts(function: Function, bases: dict[str, Base]) -> FunctionFacts:
    """Counts a function's features.

    Args:
        function: The function.
        bases: What its parameters and the module's globals point into.
    """
    graph = control_flow(function)
    flow = Flow(function=function, graph=graph, base_of=bases.get, access_of=_access)
    facts = FunctionFacts(flow)
    _count_accesses(facts)
    reachable = set(graph.order)
    for instruction in function:
        if instruction.block in reachable:
            if instruction.op == "call":
                _count_call(facts, instruction)
            elif instruction.op in _ATOMIC_OPS:
                _count_atomic(facts, instruction)
            _count_arithmetic(facts, instruction)
    facts.counts["loops"] = len(graph.loops)
    facts.counts["chains"] = _chains(flow, graph)
    facts.counts["unroll"] = max(_chain_steps(flow, graph), _output_copies(flow, graph))
    facts.counts["grid_stride_loops"] = _grid_stride_loops(flow, graph)
    _count_reuse(facts, graph)
    return facts


def _access(instruction: Instruction, flow: Flow) -> Access | None:
    """What an instruction reads or writes in global or work-group memory, if anything."""
    if instruction.op in ("load", "store"):
        store = instruction.op == "store"
        if is_pointer(instruction.type):
            return None
        base = flow.base(symbol_in(instruction.parts[1]))
        width = instruction.width
        vector = width > 1 and _aligned_as_vector(instruction)
    elif instruction.op == "call":
        name = builtin_name(instruction.callee)
        store = bool(vector_store_width(name))
        width = vector_store_width(name) or vector_load_width(name)
        if not width:
            return None
        base = flow.base(symbol_in(instruction.parts[-1]))
        vector = width > 1
    else:
        return None
    if base is None:
        base = Base(f"{flow.function.name}:?", "unknown")
    if base.space in ("private", "constant"):
        return None
    return Access(instruction, base, width, vector, store)


def _aligned_as_vector(instruction: Instruction) -> bool:
    """Vectors a compiler makes of scalars keep the scalars' alignment."""
    match = re.search(r"align (\d+)", instruction.text)
    return not match or int(match[1]) > element_bytes(instruction.type)


def _is_local(base: Base) -> bool:
    return base.space == "local"


def _count_accesses(facts: FunctionFacts) -> None:
    flow, counts = facts.flow, facts.counts
    global_bits = 0
    for access in flow.loads:
        if not _is_local(access.base):
            for lane in access.lanes:
                global_bits |= lane
    for access in (*flow.loads, *flow.stores):
        kind = "stores" if access.store else "loads"
        if _is_local(access.base):
            counts[f"local_{kind}"] += 1
            facts.local_uses.append((access.base.name, kind))
            if access.store and all(
                _is_unreduced(flow, lane, global_bits) for lane in access.lanes
            ):
                facts.local_uses.append((access.base.name, "tile_stores"))
        else:
            counts[f"global_{kind}"] += 1
            counts["global_values"] += access.width
            counts["global_vector_accesses"] += access.vector
            counts["global_vector_values"] += access.width * access.vector
            facts.writes_global = facts.writes_global or access.store


def _is_unreduced(flow: Flow, lane: int, global_bits: int) -> bool:
    """The element is one loaded from global memory, alone or transformed alone."""
    origins = flow.resolve(lane)
    loaded = origins & flow.load_bits
    return (
        loaded.bit_count() == 1
        and loaded & global_bits == loaded
        and not origins & flow.recurrent_bits
    )


def _count_call(facts: FunctionFacts, instruction: Instruction) -> None:
    name = builtin_name(instruction.callee)
    counts, flow = facts.counts, facts.flow
    if _ASYNC.match(name):
        counts["work_group_ops"] += 1
        for part, what in zip(instruction.parts, ("copies_in", "copies_out"), strict=False):
            base = flow.base(symbol_in(part))
            if base and _is_local(base):
                facts.local_uses.append((base.name, what))
            elif what == "copies_in":
                facts.writes_global = True
    elif name == "wait_group_events":
        facts.waits += 1
    elif _ATOMIC.match(name):
        _count_atomic(facts, instruction)
    counts["barriers"] += bool(_BARRIER.match(name))
    counts["work_group_ops"] += bool(_WORK_GROUP.match(name))
    counts["matrix_ops"] += bool(_MATRIX.search(name))
    counts["sub_group_ops"] += bool(_SUB_GROUP.match(name))


def _count_atomic(facts: FunctionFacts, instruction: Instruction) -> None:
    parts = instruction.parts
    base = facts.flow.base(symbol_in(parts[0])) if parts else None
    if base and _is_local(base):
        facts.counts["local_atomics"] += 1
        facts.local_uses += [(base.name, "loads"), (base.name, "stores")]
    elif not base or base.space != "private":
        facts.counts["global_atomics"] += 1
        facts.writes_global = True


def _is_data_operation(flow: Flow, instruction: Instruction) -> bool:
    if instruction.op in _FLOAT_OPS:
        return True
    if instruction.op in _INTEGER_OPS:
        return bool(flow.mask(instruction.result) & flow.load_bits)
    if instruction.op != "call" or not instruction.result or is_pointer(instruction.type):
        return False
    name = builtin_name(instruction.callee)
    if _NOT_ARITHMETIC.match(name) or _ATOMIC.match(name):
        return False
    return instruction.floating or bool(flow.mask(instruction.result) & flow.load_bits)


def _count_arithmetic(facts: FunctionFacts, instruction: Instruction) -> None:
    if _is_data_operation(facts.flow, instruction):
        width = len(facts.flow.lanes(instruction.result))
        facts.counts["data_ops"] += 1
        facts.counts["data_values"] += width
        facts.counts["data_vector_values"] += width if width > 1 else 0


def _accumulators(flow: Flow) -> list[Carried]:
    """Recurrences on data; loop counters and pointers are none."""
    return [
        item
        for item in flow.carried
        if item.recurrent
        and not is_pointer(item.phi.type)
        and (item.phi.floating or flow.mask(item.back) & flow.load_bits)
    ]


def _chains(flow: Flow, graph: Graph) -> int:
    """Most accumulators of one kind in one loop that do not depend on each other."""
    groups: dict[tuple[int, str, str], list[Carried]] = defaultdict(list)
    for item in _accumulators(flow):
        groups[item.loop, flow.maker(item.back), item.phi.type].append(item)
    most = 0
    for group in groups.values():
        bits = 0
        for item in group:
            bits |= item.bits
        independent = [i for i in group if not flow.mask(i.back) & (bits & ~i.bits)]
        most = max(most, len(independent))
    return most


def _chain_steps(flow: Flow, graph: Graph) -> int:
    """Most steps of one accumulator's chain in one iteration of its loop."""
    most = 0
    for item in _accumulators(flow):
        kind = flow.maker(item.back)
        seen, stack, steps = {item.phi.result}, [item.back], 0
        while stack:
            name = stack.pop()
            made = flow.defined.get(name)
            if name in seen or made is None or graph.innermost.get(made.block) != item.loop:
                continue
            seen.add(name)
            stack.extend(made.operands)
            steps += (
                made.op not in ("phi", "select", "bitcast")
                and flow.maker(name) == kind
                and bool(flow.mask(name) & item.bits)
            )
        most = max(most, steps)
    return most


def _output_copies(flow: Flow, graph: Graph) -> int:
    """Most stores of like values to one global array on a path through a loop's body."""
    tally: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for access in flow.stores:
        if not _is_local(access.base):
            value = symbol_in(access.instruction.parts[0])
            tally[access.base.name, flow.maker(value)][access.instruction.block] += 1
    most = 0
    for per_block in tally.values():
        best: dict[str, int] = {}
        for label in graph.order:
            before = [
                best[source]
                for source in graph.forward[label]
                if graph.innermost[source] == graph.innermost[label]
            ]
            best[label] = per_block.get(label, 0) + max(before, default=0)
        most = max(most, *best.values())
    return most


def _grid_stride_loops(flow: Flow, graph: Graph) -> int:
    """Loops over global data whose counter starts at the group's place and steps over the grid.

    The step derives from the grid's size; or it is larger than one, the counter starts at a place
    in the grid, and the end is the same for all (a piece of one's own would end at one's own end).
    """
    found = set()
    for item in flow.carried:
        loop = graph.loops[item.loop]
        back = flow.mask(item.back)
        if not item.recurrent or item.phi.floating or back & flow.load_bits:
            continue
        touches = any(a.instruction.block in loop.blocks for a in (*flow.loads, *flow.stores))
        copies = any(
            _ASYNC.match(builtin_name(i.callee))
            for label in loop.blocks
            for i in flow.function.blocks[label]
            if i.op == "call"
        )
        if not (touches or copies):
            continue
        if back & GRID_SIZE or (
            flow.mask(item.start) & GRID_POSITION
            and not _steps_by_one(flow, item)
            and _ends_alike(flow, item, loop.blocks)
        ):
            found.add(item.loop)
    return len(found)


def _steps_by_one(flow: Flow, item: Carried) -> bool:
    made = flow.defined.get(item.back)
    while made is not None and made.op in ("trunc", "sext", "zext", "ashr", "shl"):
        made = flow.defined.get(made.operands[0]) if made.operands else None
    if made is None:
        return True
    return made.op == "add" and bool(re.search(r", -?1$", made.text))


def _ends_alike(flow: Flow, item: Carried, blocks: set[str]) -> bool:
    for label in blocks:
        for instruction in flow.function.blocks[label]:
            if instruction.op != "icmp":
                continue
            sides = [symbol_in(part) for part in instruction.parts]
            masks = [flow.mask(side) if side else 0 for side in sides]
            for mine, other in (masks, masks[::-1]):
                if mine & item.bits and not other & (item.bits | GRID_POSITION):
                    return True
    return False


def _count_reuse(facts: FunctionFacts, graph: Graph) -> None:
    """Finds how many results the loaded values go into, in the busiest region of the function.

    A region is a loop's own blocks without inner loops, or all blocks outside loops. Results made
    of the same loaded values count once: a sum and a sum of squares are one use of a value. A value
    kept from an earlier iteration is used again without being loaded again.
    """
    flow = facts.flow
    loads: dict[int, int] = defaultdict(int)
    for access in flow.loads:
        for lane in access.lanes:
            loads[graph.innermost.get(access.instruction.block, -1)] |= lane
    values = dict(loads)
    for item in flow.carried:
        if not item.recurrent and not flow.resolve(item.bits) & flow.recurrent_bits:
            values[item.loop] = values.get(item.loop, 0) | item.bits
    results: dict[int, set[int]] = defaultdict(set)

    def add(region: int, lanes: Iterable[int]) -> None:
        for lane in lanes:
            if flow.resolve(lane) & loads[region]:
                results[region].add(lane & values[region])

    for item in _accumulators(flow):
        add(item.loop, flow.lanes(item.back))
    for access in flow.stores:
        region = graph.innermost.get(access.instruction.block, -1)
        partial = any(
            lane & flow.recurrent_bits or (lane & flow.load_bits).bit_count() > 1
            for lane in access.lanes
        )
        if not _is_local(access.base) or partial:
            add(region, access.lanes)

    most = 0
    for region, found in results.items():
        used = 0
        for mask in found:
            used |= flow.resolve(mask) & loads[region]
        uses = sum(mask.bit_count() for mask in found)
        if uses > most:
            most = uses
            facts.counts["loaded_values"] = used.bit_count()
            facts.counts["results"] = len(found)
            facts.counts["reuse_ratio"] = uses / used.bit_count()
            facts.counts["work_ratio"] = (uses - len(found)) / used.bit_count()
