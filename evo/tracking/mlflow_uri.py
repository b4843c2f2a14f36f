"""Tracking URIs: which are allowed, and what is plainly wrong with one, before anything runs."""

from __future__ import annotations

import os
import re
import urllib.error
import urllib.request
from pathlib import Path

from evo.errors import ConfigError

SCHEMES = ("sqlite", "http", "https", "postgresql", "mysql", "mssql", "databricks")
_SQLITE_MAGIC = b"SQLite format 3\x00"
_HELP = "tracking=none runs without MLflow"


def resolve_tracking_uri(uri: str, *, timeout_s: float = 5.0) -> str:
    """Checks a tracking URI and makes a relative sqlite path absolute.

    Args:
        uri: For example "sqlite:///mlflow.db" or "http://host:5000".
        timeout_s: How long a server may take to answer.

    Raises:
        ConfigError: If the scheme is unknown, the sqlite path cannot be written or holds something
            else, or no server answers.
    """
    scheme = re.split(r"[:+]", uri, maxsplit=1)[0].lower()
    if scheme == "file" or (":" not in uri and uri != "databricks"):
        raise ConfigError(
            f"tracking_uri={redact(uri)!r}: MLflow no longer writes plain folders; "
            "use sqlite:///PATH/mlflow.db"
        )
    if scheme not in SCHEMES:
        raise ConfigError(
            f"tracking_uri={redact(uri)!r}: unknown scheme {scheme!r}; allowed are "
            + ", ".join(SCHEMES)
        )
    if scheme == "sqlite":
        path = sqlite_path(uri)
        _check_sqlite(path, uri)
        return f"sqlite:///{path}"
    if scheme in ("http", "https"):
        _check_server(uri, timeout_s)
    return uri


def sqlite_path(uri: str) -> Path:
    """Returns the absolute path of a sqlite URI.

    Raises:
        ConfigError: If it names no file.
    """
    match = re.fullmatch(r"sqlite(?:\+\w+)?:///([^?]+?)(?:\?.*)?", uri)
    if match is None or match.group(1) == ":memory:":
        raise ConfigError(
            f"tracking_uri={uri!r}: names no file; write sqlite:///relative.db or "
            "sqlite:////absolute.db"
        )
    return Path(match.group(1)).absolute()


def _check_sqlite(path: Path, uri: str) -> None:
    where = f"tracking_uri={uri!r}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise ConfigError(f"{where}: {path} is a folder, a file is needed")
        if path.exists():
            with path.open("rb") as file:
                head = file.read(len(_SQLITE_MAGIC))
            if head and head != _SQLITE_MAGIC:
                raise ConfigError(f"{where}: {path} exists and is not a sqlite database")
        writable = os.access(path if path.exists() else path.parent, os.W_OK)
    except OSError as error:
        raise ConfigError(f"{where}: cannot use {path}: {error.strerror}; {_HELP}") from None
    if not writable:
        raise ConfigError(f"{where}: {path} is not writable; {_HELP}")


def _check_server(uri: str, timeout_s: float) -> None:
    try:
        with urllib.request.urlopen(uri.rstrip("/") + "/health", timeout=timeout_s):
            return
    except urllib.error.HTTPError as error:
        if error.code < 500:  # something answers; whether it lets us in shows at the first call
            return
        reason = f"it answers {error.code}"
    except (OSError, ValueError) as error:
        reason = str(getattr(error, "reason", error))
    raise ConfigError(
        f"tracking_uri={redact(uri)!r}: no MLflow server there ({reason}); "
        f"start one with `mlflow server`, or {_HELP}"
    )


def redact(uri: str) -> str:
    """Hides the password in a URI."""
    return re.sub(r"(://[^:/@]*):[^@/]*@", r"\1:***@", uri)
