"""Builds components from their `_target_` nodes and says which setting is at fault."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from hydra.errors import HydraException
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from evo.errors import ConfigError, EvoError

_SPECIAL = ("_target_", "_recursive_", "_convert_", "_partial_", "_args_")


def build(node: Any, *, where: str = "", **extra: Any) -> Any:
    """Instantiates a component; the one place that does.

    Names and types are checked against the component's own signature before it is called, so that
    a component only has to check its ranges.

    Args:
        node: Configuration node, or a plain mapping, with `_target_`.
        where: The node's place in the configuration, for messages; a DictConfig knows its own.
        extra: Arguments that are no settings, or take a setting's place.

    Raises:
        ConfigError: If a setting is unknown to the component, of the wrong type or refused by it.
    """
    if isinstance(node, DictConfig):
        where = where or str(node._get_full_key(""))
    if not isinstance(node, (DictConfig, dict)) or "_target_" not in node:
        raise ConfigError(f"{where or 'component'}={node!r}: an option of this group is allowed")
    settings = _plain(node, where)
    target = _find(settings["_target_"], where)
    given = {k: v for k, v in settings.items() if k not in _SPECIAL and k not in extra}
    _check(given, target, where)
    try:
        # In two steps, so that Hydra does not turn extra arguments into lists and dictionaries.
        return instantiate(settings, _convert_="all", _partial_=True)(**extra)
    except Exception as error:
        cause = error.__cause__ or error
        if isinstance(cause, EvoError):
            raise cause from None
        if isinstance(cause, (TypeError, ValueError, ImportError)):
            reason = " ".join(str(cause).split())
            # "min_blocks=0: ..." is the component's own word for "evaluation.min_blocks=0: ...".
            joint = "." if re.match(r"\w+=", reason) else ": "
            raise ConfigError(f"{where}{joint}{reason}") from None
        raise


def _plain(node: DictConfig | dict[str, Any], where: str) -> dict[str, Any]:
    try:
        config = node if isinstance(node, DictConfig) else OmegaConf.create(node)
        plain = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as error:
        key = error.full_key or where
        raise ConfigError(f"{key} has no value: give one with {key}=...") from None
    except OmegaConfBaseException as error:
        raise ConfigError(f"{where}: {' '.join(str(error).split())}") from None
    return typing.cast("dict[str, Any]", plain)


def _find(path: str, where: str) -> Callable[..., Any]:
    try:
        found = get_object(path)
    except (HydraException, ImportError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{where}._target_={path!r} cannot be loaded: {reason}") from None
    if not callable(found):
        raise ConfigError(f"{where}._target_={path!r} is nothing that can be built")
    return typing.cast("Callable[..., Any]", found)


def _check(settings: Mapping[str, Any], target: Callable[..., Any], where: str) -> None:
    parameters = inspect.signature(target).parameters
    takes_any = any(item.kind is item.VAR_KEYWORD for item in parameters.values())
    types = _types(target)
    for name, value in settings.items():
        if name not in parameters and not takes_any:
            known = ", ".join(f"{where}.{item}" for item in parameters) or "none"
            raise ConfigError(f"unknown key {where}.{name}; allowed: {known}")
        nested = isinstance(value, dict) and "_target_" in value
        if name in types and not nested and (refusal := _misfit(value, types[name])):
            raise ConfigError(f"{where}.{name}={value!r}: {refusal}")


def _types(target: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(target.__init__ if inspect.isclass(target) else target)
    except NameError:  # a name that exists for type checkers only
        return {}


def _misfit(value: Any, kind: Any) -> str:
    """Returns in what way a plain value does not fit an annotation; empty if it does."""
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        text = str(error).replace("`", "").replace("$", "it").replace("array", "list")
        return text[:1].lower() + text[1:]
    except TypeError:  # an annotation that no plain value can be checked against
        return ""
    return ""
