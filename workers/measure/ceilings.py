"""Runs the roofline's probes on a device."""

from __future__ import annotations

import logging

from evo.job import DeviceInfo
from workers.execution import ExecutorFailure
from workers.executor import Executor
from workers.measure.builds import Compiler
from workers.measure.roofline import Probe, copy_probe, peak_probe, with_ceilings

logger = logging.getLogger(__name__)

PROBE_BACKENDS = ("opencl",)
REPEATS = 6
TIMEOUT_S = 30.0


def measure_ceilings(executor: Executor, compiler: Compiler, device: DeviceInfo) -> DeviceInfo:
    """Returns the device with its copy bandwidth and multiply-add peak.

    Ceilings known already are only raised. A device that can't run the probes keeps 0, which
    switches the roofline off.

    Args:
        executor: Of the device, started.
        compiler: For the same device.
        device: As described so far.
    """
    if device.backend not in PROBE_BACKENDS:
        return device
    try:
        return with_ceilings(
            device,
            copy_us=_probe(executor, compiler, copy_probe(device)),
            peak_us=_probe(executor, compiler, peak_probe(device)),
        )
    except ExecutorFailure as error:
        logger.warning("no roofline for %s: %s", device.name, error)
        return device


def _probe(executor: Executor, compiler: Compiler, probe: Probe) -> float:
    compiled = compiler.compile(
        source=probe.source,
        build_options=probe.options,
        entries=(probe.entry,),
        timeout_s=TIMEOUT_S,
    )
    if not compiled.ok:
        raise ExecutorFailure(f"{probe.entry} does not compile: {compiled.log[:200]}")
    key = f"roofline/{probe.entry}"
    executor.load(key, compiled.binary, probe.source, probe.options, TIMEOUT_S)
    return probe.best_us(executor, key, repeats=REPEATS, timeout_s=TIMEOUT_S)
