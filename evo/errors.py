"""Everything that can go wrong and is somebody's to mend; a bad kernel is data, never an exception.

Each message is one line: what is wrong, where, and what is allowed.
"""

from __future__ import annotations


class EvoError(Exception):
    """Root of all errors raised on purpose; commands print it on one line and exit non-zero."""


class ConfigError(EvoError):
    """A setting is unknown, missing or out of range."""


class TaskError(EvoError):
    """A task folder is missing, malformed or refused by its own checks."""


class TemplateError(EvoError):
    """A kernel template or its front matter cannot be read or rendered (names file and line)."""


class SpaceError(EvoError):
    """A parameter space is malformed or its constraints leave no valid point."""


class ArchiveError(EvoError):
    """An archive was asked for something impossible, such as a cell outside its grid."""


class SearchError(EvoError):
    """The search was told about a trial that is not in flight, or got settings that do not fit."""


class JournalError(EvoError):
    """The journal cannot be written, or does not replay to the state it records."""


class BackendUnavailable(EvoError):
    """A toolchain or device is missing; the message says how to install it."""


class WorkerError(EvoError):
    """Something between controller and device failed; never blamed on a kernel."""


class WorkerUnavailable(WorkerError):
    """No worker answers at the address given."""


class WorkerLost(WorkerError):
    """A worker died or restarted while it held a job."""


class ProtocolError(WorkerError):
    """Controller and worker speak different versions, or a message is malformed."""
