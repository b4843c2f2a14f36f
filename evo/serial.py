"""Records to JSON and back: one schema for the journal, the wire and the reports."""

from __future__ import annotations

import hashlib
from typing import Any, TypeVar

import msgspec

from evo.errors import ProtocolError

T = TypeVar("T")


def to_json(record: Any) -> bytes:
    """Encodes a record (nested frozen dataclasses) as compact JSON with sorted keys."""
    return msgspec.json.encode(record, order="deterministic")


def from_json(data: bytes | str, kind: type[T]) -> T:
    """Decodes and validates a record.

    Raises:
        ProtocolError: If the text is not JSON or does not fit the record.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"not a valid {kind.__name__}: {error}") from None


def to_builtins(record: Any) -> Any:
    """Turns a record into dicts, lists and scalars."""
    return msgspec.to_builtins(record, order="deterministic")


def from_builtins(data: Any, kind: type[T]) -> T:
    """Builds a record from dicts, lists and scalars.

    Raises:
        ProtocolError: If the data does not fit the record.
    """
    try:
        return msgspec.convert(data, type=kind)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"not a valid {kind.__name__}: {error}") from None


def content_hash(data: Any) -> str:
    """Returns the first 16 hex digits of the SHA-256 of a record's canonical JSON."""
    payload = data if isinstance(data, bytes) else to_json(data)
    return hashlib.sha256(payload).hexdigest()[:16]
