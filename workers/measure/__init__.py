"""Measurement: inputs, buffers, correctness, timing, roofline, task linter."""
