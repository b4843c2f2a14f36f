"""LLVM IR as data: functions, blocks and instructions parsed from a module's text.

The text is read rather than LLVM's objects, because walking those costs a foreign call per
attribute, and because text is what has to be normalised for hashing anyway. Only what the features
need is kept. Both opaque and typed pointers are understood.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_NAME = r'(?:"[^"]*"|[-\w.$]+)'
_LOCAL = re.compile(rf"%{_NAME}")
_SYMBOL = re.compile(rf"[%@]{_NAME}")
_LABEL = re.compile(rf"^({_NAME}):")
_RESULT = re.compile(rf"^(%{_NAME}) = (.*)$")
_CALLEE = re.compile(rf"@({_NAME})\(")
_TARGETS = re.compile(rf"label (%{_NAME})")
_INCOMING = re.compile(rf"\[ (.+?), (%{_NAME}) \]")
_ATTACHED = re.compile(r"(?:,? ![\w.]+ !\d+)+$|(?:,? ![\w.]+ !\{[^}]*\})+$")
_ATTRIBUTES = re.compile(r" #\d+")
_VECTOR = re.compile(r"^<(\d+) x ([\w.]+)>")
# Words between an opcode and its type: fast-math flags, nuw and its kin, comparison predicates.
_FLAGS = re.compile(r"^(?:(?!half|bfloat|float|double|ptr|void)[a-z]+ )*")
_CALL_WORDS = frozenset({"tail", "musttail", "notail"})


@dataclass(slots=True)
class Instruction:
    """One instruction.

    Attributes:
        result: Name of its value with the leading %, "" if none.
        op: Opcode, "call" whatever its prefix.
        text: The right-hand side, without metadata and attribute references.
        type: Type of the result (for a store: of what is stored).
        operands: Names of values and globals mentioned, in order, with % or @.
        callee: Name called, "" for an indirect call or another opcode.
        block: Label of its block.
    """

    result: str
    op: str
    text: str
    type: str
    operands: tuple[str, ...]
    callee: str
    block: str

    @property
    def parts(self) -> list[str]:
        """What stands between the commas: arguments of a call, operands with types otherwise."""
        if self.op == "call":
            start = self.text.find("(", self.text.find("@" + self.callee) if self.callee else 0)
            return split_top_level(_matching(self.text[start:])) if start >= 0 else []
        return split_top_level(self.text.split(" ", 1)[1] if " " in self.text else "")

    @property
    def incoming(self) -> list[tuple[str, str]]:
        """Value and label pairs of a phi; the value of a constant is ""."""
        pairs = _INCOMING.findall(self.text)
        return [(value if value[0] in "%@" else "", label) for value, label in pairs]

    @property
    def width(self) -> int:
        """Elements of the type: N for a vector of N, else 1."""
        return vector_width(self.type)

    @property
    def floating(self) -> bool:
        """The type is floating-point, or a vector of it."""
        return is_floating(self.type)


@dataclass(slots=True)
class Parameter:
    """A function parameter: its name with the leading %, and its type's text."""

    name: str
    type: str


@dataclass(slots=True)
class Function:
    """A defined function.

    Attributes:
        name: Without the leading @.
        header: The `define` line.
        parameters: In order.
        blocks: Label with the leading % -> instructions; the first is the entry.
        successors: Label -> labels.
        address_spaces: OpenCL numbers (1 global, 2 constant, 3 local) of a kernel's parameters.
        required_size: Text of a kernel's required work-group size, "" if none.
    """

    name: str
    header: str
    parameters: list[Parameter]
    blocks: dict[str, list[Instruction]] = field(default_factory=dict)
    successors: dict[str, list[str]] = field(default_factory=dict)
    address_spaces: list[int] = field(default_factory=list)
    required_size: str = ""

    def __iter__(self) -> Iterator[Instruction]:
        for block in self.blocks.values():
            yield from block


@dataclass(slots=True)
class Module:
    """A module.

    A module holds the driver's library beside the program, so functions are parsed when asked for.

    Attributes:
        bodies: Name -> lines of a defined function, the `define` line first.
        declared: Names of functions only declared.
        globals: Name (with @) -> the text after " = ".
        others: Aliases, ifuncs and module-level assembly, as text.
        metadata: Node number with its ! -> text.
        attributes: Attribute group with its # -> text.
    """

    bodies: dict[str, list[str]] = field(default_factory=dict)
    declared: set[str] = field(default_factory=set)
    globals: dict[str, str] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)
    metadata: dict[str, str] = field(default_factory=dict)
    attributes: dict[str, str] = field(default_factory=dict)
    _parsed: dict[str, Function] = field(default_factory=dict)

    def function(self, name: str) -> Function:
        """Returns a defined function, parsed; raises KeyError if there is none."""
        if name not in self._parsed:
            header, *body = self.bodies[name]
            self._parsed[name] = _parse_function(name, header, body, self.metadata)
        return self._parsed[name]


def parse_module(text: str) -> Module:
    """Reads a module's textual IR."""
    module = Module()
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith("define "):
            body = [line]
            for inner in lines:
                if inner == "}":
                    break
                body.append(inner)
            match = _CALLEE.search(line)
            module.bodies[match[1].strip('"') if match else ""] = body
        elif line.startswith("!"):
            name, _, value = line.partition(" = ")
            module.metadata[name] = value.removeprefix("distinct ")
        elif line.startswith("declare "):
            if match := _CALLEE.search(line):
                module.declared.add(match[1].strip('"'))
        elif line.startswith("@"):
            name, _, value = line.partition(" = ")
            if re.search(r"\b(?:alias|ifunc)\b", value.split('"')[0]):
                module.others.append(line)
            else:
                module.globals[name] = value
        elif line.startswith("attributes #"):
            name, _, value = line.removeprefix("attributes ").partition(" = ")
            module.attributes[name] = value
        elif line.startswith("module asm"):
            module.others.append(line)
    return module


def split_top_level(text: str) -> list[str]:
    """Splits at commas outside of all brackets and quotes."""
    parts, depth, quoted, start = [], 0, False, 0
    for index, character in enumerate(text):
        if character == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif character in "([{<":
            depth += 1
        elif character in ")]}>":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:index].strip())
            start = index + 1
    parts.append(text[start:].strip())
    return parts


def symbol_in(part: str) -> str:
    """Returns the value or global an operand's text names (the first, in a constant expression)."""
    names = _SYMBOL.findall(part)
    return names[0] if names and "@" in part else names[-1] if names else ""


def vector_width(kind: str) -> int:
    """Elements of a type: N for `<N x T>`, else 1."""
    match = _VECTOR.match(kind)
    return int(match[1]) if match else 1


def element_bytes(kind: str) -> int:
    """Size of a type's elements: 4 for `<8 x float>` and `i32`; 8 where unknown (pointers)."""
    match = _VECTOR.match(kind)
    name = match[2] if match else kind
    known = {"float": 4, "double": 8, "half": 2, "bfloat": 2}
    if name in known:
        return known[name]
    return max(int(name[1:]) // 8, 1) if re.fullmatch(r"i\d+", name) else 8


def is_floating(kind: str) -> bool:
    """The type is floating-point, or a vector of it."""
    match = _VECTOR.match(kind)
    return (match[2] if match else kind) in {"half", "bfloat", "float", "double"}


def is_pointer(kind: str) -> bool:
    """The type is a pointer."""
    return kind.startswith("ptr") or kind.endswith("*")


def _parse_function(name: str, header: str, body: list[str], metadata: dict[str, str]) -> Function:
    match = _CALLEE.search(header)
    start = match.end() if match else 0
    function = Function(name, header, _parameters(header[start - 1 :]))
    if spaces := re.search(r"!kernel_arg_addr_space (!\d+)", header):
        numbers = re.findall(r"i32 (\d+)", metadata.get(spaces[1], ""))
        function.address_spaces = [int(number) for number in numbers]
    if size := re.search(r"!reqd_work_group_size (!\d+)", header):
        function.required_size = metadata.get(size[1], "")

    block, held = "", ""
    for line in body:
        stripped = line.strip()
        if not stripped or stripped.startswith((";", "#dbg")):
            continue
        if not line.startswith(" ") and (label := _LABEL.match(line)):
            block = "%" + label[1]
            function.blocks[block] = []
            continue
        if held:
            stripped = held + " " + stripped
        held = stripped if stripped.startswith("switch ") and "]" not in stripped else ""
        if held:
            continue
        if not function.blocks:  # a nameless entry block takes the next number without saying so
            block = f"%{sum(item.name[1:].isdigit() for item in function.parameters)}"
            function.blocks[block] = []
        instruction = _parse_instruction(stripped, block)
        function.blocks[block].append(instruction)
        if targets := _TARGETS.findall(instruction.text):
            function.successors[block] = list(dict.fromkeys(targets))
    for known in function.blocks:
        function.successors.setdefault(known, [])
    return function


def _matching(text: str) -> str:
    """Returns what is inside the bracket a text starts with."""
    depth, quoted = 0, False
    for index, character in enumerate(text):
        if character == '"':
            quoted = not quoted
        if not quoted:
            depth += (character == "(") - (character == ")")
        if depth == 0:
            return text[1:index]
    return text[1:]


def _parameters(text: str) -> list[Parameter]:
    """Reads "(float %x, ptr noalias %y) ..." up to the matching bracket."""
    inside = _matching(text)
    parameters = []
    for number, part in enumerate(split_top_level(inside) if inside else []):
        names = _LOCAL.findall(part)
        named = bool(names) and part.endswith(names[-1])
        parameters.append(Parameter(names[-1] if named else f"%{number}", _type_at_start(part)))
    return parameters


def _type_at_start(text: str) -> str:
    """Returns the type a text starts with: `<4 x float>`, `ptr addrspace(1)`, `i32`, `[4 x T]`."""
    depth = 0
    for index, character in enumerate(text):
        if character in "<[{(":
            depth += 1
        elif character in ">]})":
            depth -= 1
        elif depth == 0 and (
            character == "," or (character == " " and not text.startswith(" addrspace", index))
        ):
            return text[:index]
    return text


def _parse_instruction(line: str, block: str) -> Instruction:
    line = _ATTRIBUTES.sub("", _ATTACHED.sub("", line))
    result = ""
    if match := _RESULT.match(line):
        result, line = match[1], match[2]
    words = line.split(" ", 2)
    op = words[0]
    if op in _CALL_WORDS:
        op = "call"
        line = line.split(" ", 1)[1]
    rest = line.split(" ", 1)[1] if " " in line else ""
    callee = ""
    operands = tuple(_SYMBOL.findall(rest))
    if op == "call":
        if match := _CALLEE.search(_without_constants(rest)):
            callee = match[1].strip('"')
        kind = _call_type(rest)
    elif op in ("load", "store"):
        rest = re.sub(r"^(?:volatile |atomic )+", "", rest)
        kind = _type_at_start(rest)
    elif op in ("extractelement", "insertelement", "shufflevector", "select"):
        kind = _result_type(op, rest)
    elif op in ("getelementptr", "alloca", "inttoptr", "addrspacecast"):
        kind = "ptr"
    elif match := re.search(r" to (.+)$", rest):  # casts
        kind = match[1]
    else:
        kind = _type_at_start(_FLAGS.sub("", rest, count=1))
    return Instruction(result, op, line, kind, operands, callee, block)


def _without_constants(rest: str) -> str:
    """Drops what could look like a callee inside attributes: `byval(...)`, `sret(...)`."""
    return re.sub(r"\b(?:byval|sret|elementtype|dereferenceable\w*|align)\([^()]*\)", "", rest)


def _call_type(rest: str) -> str:
    """Type a call returns: what stands before the callee, attributes and flags dropped."""
    head = rest.split("@", 1)[0].split("(", 1)[0] if "@" in rest else rest
    for word in ("<", "[", "{"):
        if word in head:
            return _type_at_start(head[head.index(word) :])
    for word in head.split():
        if re.fullmatch(r"void|i\d+|float|double|half|bfloat|ptr|[\w.%]+\*", word):
            return word
    return "ptr" if "ptr" in head else "void"


def _result_type(op: str, rest: str) -> str:
    parts = split_top_level(_FLAGS.sub("", rest, count=1))
    if op == "select":
        return _type_at_start(parts[1])
    source = _type_at_start(parts[0])
    match = _VECTOR.match(source)
    if op == "extractelement":
        return match[2] if match else source
    if op == "shufflevector" and match:
        return f"<{vector_width(_type_at_start(parts[2]))} x {match[2]}>"
    return source
