"""From the command line to a configuration, with one-line errors."""

from __future__ import annotations

import difflib
import re
import secrets
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from evo.errors import ConfigError
from evo.run_folder import CONFIG_FILE

# What may differ when a run is continued: nothing that the recorded proposals depend on.
RESUMABLE = ("budget", "confirm", "display", "tracking", "workers")


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
        key, equals, value = arg.partition("=")
        if arg.startswith("workers=") and (value.startswith("[") or ":" in value):
            listed = value[1:-1] if re.fullmatch(r"\[.*\]", value) else value
            places = [place.strip().strip("'\"") for place in listed.split(",")]
            quoted = ",".join(f"'{place}'" for place in places if place)
            expanded += ["workers=remote", f"workers.addresses=[{quoted}]"]
        elif key == "run_dir" and equals:
            # Hydra makes the directory and writes there too, so it has to be Hydra's setting.
            expanded.append(f"hydra.run.dir={value}")
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
    parsed = _parsed(overrides)
    fixed = [str(item.input_line) for item in parsed if not item.is_sweep_override()]
    variants = [fixed]
    for item in parsed:
        if item.is_sweep_override():
            key = item.get_key_element()
            variants += [[*fixed, f"{key}={value}"] for value in item.sweep_string_iterator()]
    known = compose_config([])
    for variant in variants:
        try:
            config = compose_config(variant)
        except ConfigError as error:
            match = re.search(r"Could not override '([^']+)'", str(error))
            raise _unknown(match.group(1), _chosen_groups(variant)) if match else error from None
        if unknown := sorted(set(config) - set(known), key=str):
            raise _unknown(str(unknown[0]), known)
        if missing := sorted(set(known) - set(config), key=str):
            raise ConfigError(f"{missing[0]} is left without a value: give it one")


def _chosen_groups(overrides: Sequence[str]) -> DictConfig:
    """Composes with the group options among overrides only, to know which keys they bring."""
    known = compose_config([])
    groups = [item for item in overrides if item.partition("=")[0] in known]
    try:
        return compose_config(groups)
    except ConfigError:
        return known


def _parsed(overrides: Sequence[str]) -> list[Override]:
    for override in overrides:
        if not re.match(r"~|[^=]+=", override):
            raise ConfigError(f"{override!r} is not KEY=VALUE")
    try:
        return OverridesParser.create().parse_overrides(overrides=list(overrides))
    except HydraException as error:
        raise ConfigError(one_line(error)) from None


def _unknown(key: str, known: DictConfig) -> ConfigError:
    names = _dotted(OmegaConf.to_container(known, resolve=False), "")
    parent = key.rpartition(".")[0]
    siblings = [name for name in names if name.rpartition(".")[0] == parent]
    if parent in names and not siblings:
        return ConfigError(f"unknown key {key!r}: {parent} has no settings")
    elsewhere = [name for name in names if name.rpartition(".")[2] == key]
    close = difflib.get_close_matches(key, siblings, n=1, cutoff=0.75) or elsewhere
    if close:
        return ConfigError(f"unknown key {key!r}, did you mean {close[0]}?")
    others = siblings or [name for name in names if "." not in name]
    return ConfigError(f"unknown key {key!r}; allowed: {', '.join(sorted(others))}")


def _dotted(node: Any, prefix: str) -> list[str]:
    if not isinstance(node, dict):
        return []
    names = []
    for key, value in node.items():
        if not str(key).startswith("_"):
            names += [f"{prefix}{key}", *_dotted(value, f"{prefix}{key}.")]
    return names


def one_line(error: BaseException) -> str:
    """Folds Hydra's many-line messages into one line that says what and what is allowed."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    options = [line for line in lines if re.fullmatch(r"[\w./-]+", line)]
    text = " ".join(line for line in lines if line not in options)
    text = re.sub(r"Set the environment variable HYDRA_FULL_ERROR.*", "", text)
    text = re.sub(r"See https://hydra\S*( for details)?", "", text)
    text = re.sub(r"^In '[\w./-]+': ", "", text)
    text = re.sub(r"\s*(full_key: \S*|object_type=\S*)", "", text)
    text = re.sub(r"To append to your (default list|config) use \S+", "", text)
    text = re.sub(r"\s*Config search path:.*", "", text)
    if options:
        missing = re.search(r"Could not find '([\w/]+)/([^'/]+)'", text)
        text = f"{missing.group(1)}={missing.group(2)}" if missing else text.rstrip(":")
        text = f"{text}: allowed are {', '.join(options)}"
    return " ".join(text.split())


def saved_config(run_dir: Path, overrides: Sequence[str]) -> DictConfig:
    """Reads the configuration a run was started with and applies what a resume may change.

    Raises:
        ConfigError: If the directory holds no run, or an override touches the search itself.
    """
    path = run_dir / CONFIG_FILE
    if not path.is_file():
        raise ConfigError(f"{run_dir}: no run there ({CONFIG_FILE} is missing)")
    try:
        config = OmegaConf.load(path)
    except (OSError, YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"{path}: cannot be read: {one_line(error)}") from None
    missing = sorted(map(str, set(compose_config([])) - set(config)))
    if not isinstance(config, DictConfig) or missing:
        raise ConfigError(f"{path}: not the configuration of a run (no {', '.join(missing)})")
    parsed = _parsed(overrides)
    for item in parsed:
        key = str(item.key_or_group)
        if item.type is not OverrideType.CHANGE or key.partition(".")[0] not in RESUMABLE:
            raise ConfigError(
                f"a resumed run keeps its settings, so {item.input_line!r} cannot change; "
                f"allowed: {', '.join(RESUMABLE)}"
            )
    for item in parsed:
        if _is_group(item):
            group, backend = str(item.key_or_group), f"backend={config.backend.name}"
            fresh = compose_config([str(item.input_line), backend])
            config[group] = OmegaConf.to_container(fresh[group], resolve=True)
    OmegaConf.set_struct(config, True)
    for item in parsed:
        if not _is_group(item):
            _update(config, str(item.key_or_group), item.value())
    return config


def _is_group(item: Override) -> bool:
    return str(item.key_or_group) in RESUMABLE and item.key_or_group != "display"


def _update(config: DictConfig, key: str, value: Any) -> None:
    try:
        OmegaConf.update(config, key, value, force_add=False)
    except OmegaConfBaseException:
        raise _unknown(key, config) from None


def is_multirun() -> bool:
    """Whether this job is part of a Hydra sweep."""
    return HydraConfig.initialized() and HydraConfig.get().mode is RunMode.MULTIRUN
