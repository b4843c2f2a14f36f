"""Variation operators on genomes, one file each, all keeping the contract in `base.py`."""
