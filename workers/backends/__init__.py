"""Backends: one file per language, all keeping the contract in `base.py`."""
