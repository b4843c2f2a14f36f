"""Wire format of the worker service."""
