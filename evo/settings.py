"""From the command line to a configuration, with one-line errors."""

from __future__ import annotations

import difflib
import re
import secrets
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from evo.errors import ConfigError, EvoError

CONFIG_FILE = "config.yaml"

# What may differ when a run is continued: nothing that the recorded proposals depend on.
RESUMABLE = ("budget.", "confirm.", "display=", "tracking.", "workers.", "workers=")


@cache
def _run_uid() -> str:
    # Cached: Hydra resolves the run directory more than once and must get one answer. Searches
    # started in the same second must not share a directory.
    return secrets.token_hex(3)


def register_resolvers() -> None:
    """Makes the resolvers used in conf/config.yaml known to OmegaConf; idempotent."""
    OmegaConf.register_new_resolver("run_uid", _run_uid, replace=True)
    OmegaConf.register_new_resolver("task_label", lambda task: Path(str(task)).name, replace=True)


def expand_shorthand(args: Sequence[str]) -> list[str]:
    """Rewrites `workers=[host:port,...]` to the remote group option, `run_dir=` to Hydra's own."""
    expanded = []
    for arg in args:
        match = re.fullmatch(r"workers=\[?([^\[\]]*:\d+[^\[\]]*)\]?", arg)
        if match:
            expanded += ["workers=remote", f"workers.addresses=[{match.group(1)}]"]
        elif arg.startswith("run_dir="):
            # Hydra makes the directory and writes there too, so it has to be Hydra's setting.
            expanded.append(f"hydra.run.dir={arg.removeprefix('run_dir=')}")
        else:
            expanded.append(arg)
    return expanded


def compose_config(overrides: Sequence[str], *, for_run: bool = False) -> DictConfig:
    """Composes a configuration outside a Hydra job.

    Args:
        overrides: Hydra overrides such as "task=matmul".
        for_run: Also resolve Hydra's own node (not needed for validation).

    Raises:
        ConfigError: If a key or option is unknown or a value has the wrong form, on one line.
    """
    register_resolvers()
    GlobalHydra.instance().clear()
    try:
        with initialize_config_module("conf", version_base="1.3"):
            return compose("config", overrides=list(overrides), return_hydra_config=for_run)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(one_line(error)) from None
    finally:
        GlobalHydra.instance().clear()


def check_overrides(overrides: Sequence[str]) -> None:
    """Refuses unknown keys and options before anything runs; sweeps are checked choice by choice.

    Raises:
        ConfigError: On one line, with the nearest known names.
    """
    try:
        parsed = OverridesParser.create().parse_overrides(overrides=list(overrides))
    except HydraException as error:
        raise ConfigError(one_line(error)) from None
    fixed = [item.input_line for item in parsed if not item.is_sweep_override()]
    variants = [fixed]
    for item in parsed:
        if item.is_sweep_override():
            key = item.get_key_element()
            variants += [[*fixed, f"{key}={value}"] for value in item.sweep_string_iterator()]
    known = compose_config([])
    for variant in variants:
        try:
            config = compose_config([item for item in variant if item])
        except ConfigError as error:
            raise ConfigError(f"{error}{_nearest(str(error), known)}") from None
        unknown = sorted(set(config) - set(known), key=str)
        if unknown:
            raise ConfigError(
                f"unknown key {unknown[0]!r}; allowed: {', '.join(sorted(map(str, known)))}"
            )


def _nearest(message: str, known: DictConfig) -> str:
    match = re.search(r"Could not override '([^']+)'", message)
    if not match:
        return ""
    names = _dotted(OmegaConf.to_container(known, resolve=False), "")
    close = difflib.get_close_matches(match.group(1), names, n=3, cutoff=0.5)
    siblings = [n for n in names if n.rpartition(".")[0] == match.group(1).rpartition(".")[0]]
    return f" No such key; allowed here: {', '.join(close or siblings or sorted(map(str, known)))}"


def _dotted(node: Any, prefix: str) -> list[str]:
    if not isinstance(node, dict):
        return []
    names = []
    for key, value in node.items():
        names += [f"{prefix}{key}", *_dotted(value, f"{prefix}{key}.")]
    return names


def one_line(error: BaseException) -> str:
    """Folds Hydra's many-line messages into one line that says what and what is allowed."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    options = [line for line in lines if re.fullmatch(r"[\w./-]+", line)]
    text = " ".join(line for line in lines if line not in options)
    text = re.sub(r"Set the environment variable HYDRA_FULL_ERROR.*", "", text)
    text = re.sub(r"\s*(full_key: \S*|object_type=\S*)", "", text)
    text = re.sub(r"To append to your (default list|config) use \S+", "", text)
    text = re.sub(r"\s*Config search path:.*", "", text)
    if options:
        text = text.rstrip(":").replace("Available options in", "allowed in")
        text = f"{text}: {', '.join(options)}"
    return " ".join(text.split())


def build(node: Any, **extra: Any) -> Any:
    """Instantiates a component from its `_target_` node; the one place that does.

    Raises:
        ConfigError: If a setting is unknown to the component or refused by it.
        EvoError: Whatever the component itself raises on purpose.
    """
    try:
        return instantiate(node, _convert_="all", **extra)
    except Exception as error:
        cause = error.__cause__ or error
        if isinstance(cause, EvoError):
            raise cause from None
        if isinstance(cause, (TypeError, ValueError, ImportError)):
            target = node.get("_target_", "?") if isinstance(node, DictConfig) else "?"
            raise ConfigError(f"cannot build {target}: {one_line(cause)}") from None
        raise


def saved_config(run_dir: Path, overrides: Sequence[str]) -> DictConfig:
    """Reads the configuration a run was started with and applies what a resume may change.

    Raises:
        ConfigError: If the directory holds no run, or an override touches the search itself.
    """
    path = run_dir / CONFIG_FILE
    if not path.is_file():
        raise ConfigError(f"resume={run_dir}: no run there ({CONFIG_FILE} is missing)")
    for override in overrides:
        if not override.startswith(RESUMABLE):
            raise ConfigError(
                f"a resumed run keeps its settings, so {override!r} cannot change; "
                f"allowed: {', '.join(RESUMABLE)}"
            )
    config = OmegaConf.load(path)
    if not isinstance(config, DictConfig):
        raise ConfigError(f"{path}: not the configuration of a run")
    OmegaConf.set_struct(config, True)
    groups = [item for item in overrides if item.startswith("workers")]
    if groups:
        fresh = compose_config([*groups, f"backend={config.backend.name}"])
        with_backend = OmegaConf.to_container(fresh.workers, resolve=True)
        OmegaConf.set_struct(config, False)
        config.workers = with_backend
        OmegaConf.set_struct(config, True)
    for override in overrides:
        if override not in groups:
            key, _, text = override.partition("=")
            try:
                OmegaConf.update(config, key, yaml.safe_load(text), force_add=False)
            except (OmegaConfBaseException, yaml.YAMLError) as error:
                raise ConfigError(f"{override!r}: {one_line(error)}") from None
    return config


def is_multirun() -> bool:
    """Whether this job is part of a Hydra sweep."""
    return HydraConfig.initialized() and HydraConfig.get().mode is RunMode.MULTIRUN
