"""Builds OpenCL C with PoCL and takes the bitcode out."""

from __future__ import annotations

import functools

import pytest

from workers.features_llvm import bitcode_from_pocl_binary


@functools.cache
def pocl_binary(source: str, options: tuple[str, ...] = ()) -> bytes:
    """Compiles for the first PoCL device; skips the test where there is none."""
    cl = pytest.importorskip("pyopencl")
    for platform in cl.get_platforms():
        if "Portable Computing Language" in platform.name:
            context = cl.Context([platform.get_devices()[0]])
            program = cl.Program(context, source).build(list(options), cache_dir=False)
            return bytes(program.get_info(cl.program_info.BINARIES)[0])
    pytest.skip("PoCL is not installed")


def pocl_bitcode(source: str, options: tuple[str, ...] = ()) -> bytes:
    """As `pocl_binary`, but the program's bitcode."""
    bitcode = bitcode_from_pocl_binary(pocl_binary(source, options))
    assert bitcode is not None
    return bitcode
