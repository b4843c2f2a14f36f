"""The engine: records, templates, spaces, archives, search; pure Python, no device, no network."""
