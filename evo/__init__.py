"""The engine: records, templates, spaces, archives, search; pure Python, no device, no network."""

from __future__ import annotations

import importlib.util
from pathlib import Path

__version__ = "0.1.0"


def _refuse_intruders() -> None:
    """Names the folder when another distribution's `workers`, `conf`, ... shadows ours.

    The five packages have common names; pip lets another distribution overwrite them silently.
    """
    home = Path(__file__).resolve().parents[1]
    for name in ("operators", "workers", "templates", "conf"):
        spec = importlib.util.find_spec(name)
        places = list(spec.submodule_search_locations or []) if spec else []
        if not places or Path(places[0]).resolve().parent != home:
            found = places[0] if places else "nowhere"
            raise ImportError(
                f"package {name!r} should lie in {home} but is found at {found}: "
                "install kernel-elites in a virtual environment of its own"
            )


_refuse_intruders()
