"""Conformance suites that a new archive, operator, backend or evaluator inherits."""
