"""Control and data flow in a function: loops, and which loaded values each value is made of.

Every element of every value carries a set of origins as an integer's bits: one bit per loaded
element, one per element of a value carried round a loop, and two for the launch grid. Vectors are
followed element by element, so that a register block shows as what it is, however it is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from workers.llvm_text import Function, Instruction, symbol_in

GRID_SIZE = 1
"""Bit of what derives from the number of work-groups or work-items."""
GRID_POSITION = 2
"""Bit of what derives from a work-group's or work-item's place in the grid."""

Lanes = tuple[int, ...]

_MANGLED = re.compile(r"^_Z(\d+)(.+)$")
_VLOAD = re.compile(r"^vloada?(?:_half)?(2|3|4|8|16)?$")
_VSTORE = re.compile(r"^vstorea?(?:_half)?(2|3|4|8|16)?(?:_r[a-z]+)?$")
# Builtins that make one value of a vector.
_FOLDING = re.compile(r"^(?:fast_)?(?:dot|length|distance)$|^any$|^all$")
_GRID_SIZE_CALLS = frozenset({"get_global_size", "get_num_groups"})
_GRID_POSITION_CALLS = frozenset({"get_global_id", "get_group_id", "get_global_linear_id"})
# A value carried round a loop may pass through this many others of the same loop's.
_MAX_PASSES = 4


def builtin_name(callee: str) -> str:
    """Returns a function's plain name: `_Z10_cl_vload4mPU8CLglobalKf` is `vload4`."""
    match = _MANGLED.match(callee)
    if not match:
        return callee
    return match[2][: int(match[1])].removeprefix("_cl_")


def vector_load_width(name: str) -> int:
    """Elements a vload builtin loads, 1 for vload_half; 0 for any other function."""
    match = _VLOAD.match(name)
    return int(match[1] or 1) if match else 0


def vector_store_width(name: str) -> int:
    """Elements a vstore builtin stores, 1 for vstore_half; 0 for any other function."""
    match = _VSTORE.match(name)
    return int(match[1] or 1) if match else 0


@dataclass(slots=True)
class Loop:
    """A natural loop: its header, its blocks, and the blocks that jump back."""

    header: str
    blocks: set[str]
    latches: set[str]


@dataclass(frozen=True, slots=True)
class Base:
    """What a pointer points into: a name unique in the program, and "global", "local", ..."""

    name: str
    space: str


@dataclass(slots=True)
class Graph:
    """Control flow of a function.

    Attributes:
        order: Reachable blocks in reverse post-order.
        forward: Block -> predecessors, edges that close a loop left out.
        loops: All loops, inner ones before the loops around them.
        innermost: Block -> index of its innermost loop, -1 outside of all.
    """

    order: list[str]
    forward: dict[str, list[str]]
    loops: list[Loop]
    innermost: dict[str, int]


def control_flow(function: Function) -> Graph:
    """Finds blocks, loops and their nesting."""
    order = _reverse_post_order(function)
    number = {label: index for index, label in enumerate(order)}
    predecessors: dict[str, list[str]] = {label: [] for label in order}
    for label in order:
        for target in function.successors[label]:
            predecessors[target].append(label)
    dominators = _dominators(order, number, predecessors)

    loops: dict[str, Loop] = {}
    forward: dict[str, list[str]] = {label: [] for label in order}
    for label in order:
        for source in predecessors[label]:
            if dominators[source] >> number[label] & 1:
                loop = loops.setdefault(label, Loop(label, {label}, set()))
                loop.latches.add(source)
                _grow(loop, source, predecessors)
            elif number[source] < number[label]:
                forward[label].append(source)
    nested = sorted(loops.values(), key=lambda loop: len(loop.blocks))
    innermost = {
        label: next((i for i, loop in enumerate(nested) if label in loop.blocks), -1)
        for label in order
    }
    return Graph(order, forward, nested, innermost)


def _reverse_post_order(function: Function) -> list[str]:
    entry = next(iter(function.blocks))
    seen, done = {entry}, []
    stack = [(entry, iter(function.successors[entry]))]
    while stack:
        label, targets = stack[-1]
        target = next(targets, None)
        if target is None:
            stack.pop()
            done.append(label)
        elif target not in seen:
            seen.add(target)
            stack.append((target, iter(function.successors[target])))
    return done[::-1]


def _dominators(
    order: list[str], number: dict[str, int], predecessors: dict[str, list[str]]
) -> dict[str, int]:
    """Block -> set of blocks that dominate it, as bits (the plain iterative algorithm)."""
    everything = (1 << len(order)) - 1
    result = dict.fromkeys(order, everything)
    result[order[0]] = 1
    changed = True
    while changed:
        changed = False
        for label in order[1:]:
            common = everything
            for source in predecessors[label]:
                common &= result[source]
            common |= 1 << number[label]
            if common != result[label]:
                result[label] = common
                changed = True
    return result


def _grow(loop: Loop, latch: str, predecessors: dict[str, list[str]]) -> None:
    stack = [latch]
    while stack:
        label = stack.pop()
        if label not in loop.blocks:
            loop.blocks.add(label)
            stack.extend(predecessors[label])


@dataclass(slots=True)
class Access:
    """One access to memory: where, how many elements, whether the source asked for a vector."""

    instruction: Instruction
    base: Base
    width: int
    vector: bool
    store: bool
    lanes: Lanes = ()
    """Of a store: origins of what is stored. Of a load: its own bits."""


@dataclass(slots=True)
class Carried:
    """A value carried round a loop: phi of the loop's header, and what comes back to it."""

    phi: Instruction
    loop: int
    back: str
    start: str
    bits: int = 0
    recurrent: bool = False
    """What comes back depends on what was carried."""


class Flow:
    """Data flow of a function.

    Attributes:
        values: Name -> origins per element.
        defined: Name -> instruction.
        loads, stores: Accesses other than to private memory.
        carried: Values carried round loops.
        load_bits: All bits of loaded elements.
        recurrent_bits: All bits of values carried round a loop and changed on the way.
    """

    def __init__(
        self,
        *,
        function: Function,
        graph: Graph,
        base_of: Callable[[str], Base | None],
        access_of: Callable[[Instruction, Flow], Access | None],
    ):
        """Runs the analysis.

        Args:
            function: The function.
            graph: Its control flow.
            base_of: Says what a parameter or global is, None if it is no pointer to memory.
            access_of: Says what a load or store accesses; it may use `base`.
        """
        self.function = function
        self.graph = graph
        self.values: dict[str, Lanes] = {}
        self.defined = {i.result: i for i in function if i.result}
        self.loads: list[Access] = []
        self.stores: list[Access] = []
        self.load_bits = 0
        self.recurrent_bits = 0
        self._base_of = base_of
        self._bases: dict[str, Base | None] = {}
        self._private: dict[str, Lanes] = {}
        self._next_bit = 2
        self._accesses: dict[int, Access] = {}
        for label in graph.order:
            for instruction in function.blocks[label]:
                if access := access_of(instruction, self):
                    self._accesses[id(instruction)] = access
                    self._register(access)
        self.carried = self._find_carried()
        self._own = {item.phi.result: self._own_lanes(item) for item in self.carried}
        self._passed_on: list[tuple[Carried, Lanes]] = []
        self._run()
        self._settle()

    def lanes(self, name: str) -> Lanes:
        """Origins of a value per element; constants and parameters have none."""
        return self.values.get(name, (0,))

    def mask(self, name: str) -> int:
        """Origins of a value, all elements together, with those of values passed on to it."""
        return self.resolve(_union(self.lanes(name)))

    def resolve(self, mask: int) -> int:
        """Adds the origins of values that were passed on from an earlier iteration."""
        for item, sources in self._passed_on:
            if mask & item.bits:
                for i, lane in enumerate(sources):
                    if mask & item.bits & (self._lowest(item) << i):
                        mask |= lane
        return mask

    def base(self, name: str) -> Base | None:
        """Follows a pointer to what it points into; None if that is unknown."""
        if name not in self._bases:
            self._bases[name] = None  # ends cycles of pointers carried round loops
            self._bases[name] = self._find_base(name)
        return self._bases[name]

    def maker(self, name: str, depth: int = 8) -> str:
        """Names the operation that made a value, seen through phis, selects and casts."""
        instruction = self.defined.get(name)
        if instruction is None or depth == 0:
            return ""
        if instruction.op == "phi":
            candidates = [value for value, _ in instruction.incoming]
        elif instruction.op == "select":
            candidates = [symbol_in(part) for part in instruction.parts[1:]]
        elif instruction.op in ("bitcast", "freeze", "shufflevector", "extractelement"):
            candidates = list(instruction.operands[:1])
        else:
            return builtin_name(instruction.callee) if instruction.callee else instruction.op
        return next((m for value in candidates if (m := self.maker(value, depth - 1))), "")

    def _register(self, access: Access) -> None:
        if access.store:
            self.stores.append(access)
            return
        access.lanes = tuple(1 << (self._next_bit + i) for i in range(access.width))
        self._next_bit += access.width
        self.load_bits |= _union(access.lanes)
        self.loads.append(access)

    def _find_base(self, name: str) -> Base | None:
        instruction = self.defined.get(name)
        if instruction is None:
            return self._base_of(name)
        if instruction.op == "alloca":
            return Base(f"{self.function.name}:{name}", "private")
        if instruction.op == "phi":
            sources: Iterable[str] = (value for value, _ in instruction.incoming)
        elif instruction.op == "select":
            sources = (symbol_in(part) for part in instruction.parts[1:])
        elif instruction.op == "getelementptr":
            sources = [symbol_in(instruction.parts[1])]
        elif instruction.op in ("bitcast", "addrspacecast", "freeze"):
            sources = instruction.operands[:1]
        elif instruction.op == "call" and instruction.callee.startswith("llvm."):
            sources = [symbol_in(part) for part in instruction.parts[:1]]
        else:
            return None
        return next((base for source in sources if source and (base := self.base(source))), None)

    def _find_carried(self) -> list[Carried]:
        found = []
        for index, loop in enumerate(self.graph.loops):
            for phi in self.function.blocks[loop.header]:
                if phi.op != "phi":
                    break
                back = [v for v, label in phi.incoming if label in loop.latches and v]
                start = [v for v, label in phi.incoming if label not in loop.latches]
                if back:
                    item = Carried(phi, index, back[0], start[0] if start else "")
                    item.bits = (1 << phi.width) - 1 << self._next_bit
                    self._next_bit += phi.width
                    found.append(item)
        return found

    @staticmethod
    def _lowest(item: Carried) -> int:
        return item.bits & -item.bits

    def _own_lanes(self, item: Carried) -> Lanes:
        return tuple(self._lowest(item) << i for i in range(item.phi.width))

    def _settle(self) -> None:
        """Tells recurrences from values merely passed on, and gives the latter their origins."""
        depends = {item.phi.result: _union(self.lanes(item.back)) for item in self.carried}
        for item in self.carried:
            reached = depends[item.phi.result]
            while True:
                more = reached
                for other in self.carried:
                    if other.bits & reached:
                        more |= depends[other.phi.result]
                if more == reached:
                    break
                reached = more
            item.recurrent = bool(reached & item.bits)
        for item in self.carried:
            if item.recurrent:
                self.recurrent_bits |= item.bits
            else:
                sources = [self.lanes(value) for value, _ in item.phi.incoming if value]
                self._passed_on.append((item, _combine(sources, item.phi.width)))
        # A value may be passed on to a value that is passed on.
        for _ in range(min(len(self._passed_on), _MAX_PASSES)):
            self._passed_on = [
                (item, tuple(self.resolve(lane) for lane in lanes))
                for item, lanes in self._passed_on
            ]

    def _run(self) -> None:
        for label in self.graph.order:
            for instruction in self.function.blocks[label]:
                lanes = self._transfer(instruction)
                if instruction.result:
                    self.values[instruction.result] = lanes

    def _transfer(self, instruction: Instruction) -> Lanes:
        op, width = instruction.op, instruction.width
        if access := self._accesses.get(id(instruction)):
            if access.store:
                access.lanes = self._stored(instruction)
                return ()
            return access.lanes
        if instruction.result in self._own:
            return self._own[instruction.result]
        if op == "phi":
            return _combine([self.lanes(v) for v, _ in instruction.incoming if v], width)
        if op == "load":
            base = self.base(symbol_in(instruction.parts[1]))
            return _combine([self._private.get(base.name, (0,))] if base else [], width)
        if op == "store":
            self._store_private(instruction)
            return ()
        if op == "select":
            parts = [symbol_in(part) for part in instruction.parts[1:]]
            return _combine([self.lanes(p) for p in parts if p], width)
        if op in ("extractelement", "insertelement", "shufflevector"):
            return self._rearrange(instruction)
        if op == "bitcast":
            lanes = self.lanes(instruction.operands[0]) if instruction.operands else (0,)
            # Two floats pass through calls as one double.
            return lanes if width in (1, len(lanes)) else _combine([lanes], width)
        if op == "call":
            return self._call(instruction)
        return _combine([self.lanes(name) for name in instruction.operands], width)

    def _call(self, instruction: Instruction) -> Lanes:
        name = builtin_name(instruction.callee)
        if name in _GRID_SIZE_CALLS:
            return (GRID_SIZE,)
        if name in _GRID_POSITION_CALLS:
            return (GRID_POSITION,)
        if vector_store_width(name):
            self._store_private(instruction)
            return ()
        if width := vector_load_width(name):
            base = self.base(symbol_in(instruction.parts[-1]))
            return _combine([self._private.get(base.name, (0,))] if base else [], width)
        width = instruction.width
        if instruction.type in ("double", "i64") and "Dv2_" in instruction.callee:
            width = 1 if _FOLDING.match(name) else 2
        return _combine([self.lanes(symbol_in(part)) for part in instruction.parts], width)

    def _stored(self, instruction: Instruction) -> Lanes:
        return self.lanes(symbol_in(instruction.parts[0]))

    def _store_private(self, instruction: Instruction) -> None:
        target = instruction.parts[1 if instruction.op == "store" else -1]
        base = self.base(symbol_in(target))
        if base is None:
            return
        lanes, old = self._stored(instruction), self._private.get(base.name)
        if old is None:
            self._private[base.name] = lanes
        elif len(old) == len(lanes):
            self._private[base.name] = _combine([old, lanes], len(old))
        else:
            self._private[base.name] = (_union(old) | _union(lanes),)

    def _rearrange(self, instruction: Instruction) -> Lanes:
        parts = instruction.parts
        first = self.lanes(symbol_in(parts[0]))
        if instruction.op == "extractelement":
            index = _constant(parts[1])
            return (first[index],) if index is not None and index < len(first) else (_union(first),)
        width = instruction.width
        if instruction.op == "insertelement":
            lanes = list(first) if len(first) == width else [_union(first)] * width
            added, index = _union(self.lanes(symbol_in(parts[1]))), _constant(parts[2])
            for i in range(width) if index is None else [index]:
                lanes[i] = added if index is not None else lanes[i] | added
            return tuple(lanes)
        second = self.lanes(symbol_in(parts[1]))
        size = max(len(first), len(second))
        pool = _combine([first], size) + _combine([second], size)
        picks = _shuffle_mask(parts[2], width)
        return tuple(pool[p] if p is not None and p < len(pool) else 0 for p in picks)


def _shuffle_mask(text: str, width: int) -> list[int | None]:
    if "zeroinitializer" in text:
        return [0] * width
    if splat := re.search(r"splat \(i32 (\d+)\)", text):
        return [int(splat[1])] * width
    items = re.findall(r"i32 (\d+|undef|poison)", text.split("> <", 1)[-1])
    picks: list[int | None] = [int(item) if item.isdigit() else None for item in items]
    return picks if len(picks) == width else [None] * width


def _constant(text: str) -> int | None:
    match = re.search(r"(\d+)$", text) if "%" not in text else None
    return int(match[1]) if match else None


def _union(lanes: Iterable[int]) -> int:
    result = 0
    for lane in lanes:
        result |= lane
    return result


def _combine(sources: Sequence[Lanes], width: int) -> Lanes:
    """Element by element where widths agree; a scalar goes everywhere, so does an odd vector."""
    result = [0] * width
    for lanes in sources:
        if len(lanes) == width:
            for i, lane in enumerate(lanes):
                result[i] |= lane
        else:
            union = _union(lanes)
            if union:
                result = [lane | union for lane in result]
    return tuple(result)
