"""Quality-diversity archives: one file each, all keeping the contract in `base.py`."""
