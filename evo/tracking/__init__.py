"""Trackers: MLflow and none; the self-contained report."""
