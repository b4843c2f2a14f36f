"""OpenCL through pyopencl: any device that an installed driver offers, PoCL's CPU included.

Facts relied on: PoCL's program binary carries optimised LLVM bitcode; drivers finish code for a
work-group size at its first enqueue; event profiling is in nanoseconds of the device's clock.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evo.errors import BackendUnavailable
from evo.evaluation import CodeFeatures, Resources
from evo.job import DeviceInfo, Launch
from workers.backends import opencl_text
from workers.backends.base import Bytes, CompiledCode, CompileFailure, Fill, LaunchFailure

_INSTALL = "install it with: pip install 'pyopencl[pocl]'"
_POCL_MAGIC = b"poclbin"
_CALLS_IN_FLIGHT = 128

# Reported before the device is touched, so the context is sound and the child can go on.
_HARMLESS_ERRORS = frozenset(
    {
        "INVALID_ARG_INDEX",
        "INVALID_ARG_SIZE",
        "INVALID_ARG_VALUE",
        "INVALID_KERNEL_ARGS",
        "INVALID_KERNEL_NAME",
        "INVALID_GLOBAL_WORK_SIZE",
        "INVALID_WORK_DIMENSION",
        "INVALID_WORK_GROUP_SIZE",
        "INVALID_WORK_ITEM_SIZE",
    }
)


def create() -> OpenCLBackend:
    """Returns the backend; loads no driver yet."""
    return OpenCLBackend()


class OpenCLBackend:
    """Finds devices: GPUs first, then the rest, each in the order of platforms and devices."""

    name = "opencl"

    def available(self) -> str:
        """Returns "" if there is a device, else why not and what to install."""
        try:
            _devices()
        except BackendUnavailable as error:
            return str(error)
        return ""

    def open(self, device_index: int) -> OpenCLDevice:
        """Opens a device by its place in the order above."""
        devices = _devices()
        if not 0 <= device_index < len(devices):
            raise BackendUnavailable(
                f"no OpenCL device {device_index}; there are {len(devices)}, counted from 0"
            )
        return OpenCLDevice(devices[device_index])


def _devices() -> list[Any]:
    try:
        import pyopencl as cl
    except ImportError as error:
        raise BackendUnavailable(f"pyopencl is missing ({error}); {_INSTALL}") from None
    try:
        found = [device for platform in cl.get_platforms() for device in platform.get_devices()]
    except cl.Error as error:
        raise BackendUnavailable(f"no OpenCL driver found ({error}); {_INSTALL}") from None
    if not found:
        raise BackendUnavailable(f"the OpenCL drivers show no device; {_INSTALL}")
    return sorted(found, key=lambda device: not device.type & cl.device_type.GPU)


def _device_info(device: Any) -> DeviceInfo:
    import pyopencl as cl

    sizes = [int(size) for size in device.max_work_item_sizes[:3]]
    is_gpu = bool(device.type & cl.device_type.GPU)
    return DeviceInfo(
        backend="opencl",
        name=device.name.strip(),
        kind="gpu" if is_gpu else "cpu",
        vendor=device.vendor.strip(),
        driver=device.driver_version.strip(),
        platform=device.platform.version.strip(),
        compute_units=int(device.max_compute_units),
        max_work_group_size=int(device.max_work_group_size),
        max_block=(sizes[0], sizes[1], sizes[2]),
        local_mem_bytes=int(device.local_mem_size),
        global_mem_bytes=int(device.global_mem_size),
        cache_bytes=int(device.global_mem_cache_size),
        sub_group_size=_sub_group_size(device) if is_gpu else 1,
        vector_width=int(device.preferred_vector_width_float),
    )


def _sub_group_size(device: Any) -> int:
    import pyopencl as cl

    for attribute in ("warp_size_nv", "wavefront_width_amd"):
        try:
            return int(getattr(device, attribute))
        except (AttributeError, cl.Error):
            continue
    return 1


@dataclass(frozen=True, slots=True)
class _Buffer:
    """The whole allocation, and the part of it that kernels get."""

    whole: Any
    payload: Any


@dataclass(frozen=True, slots=True)
class _Call:
    """Kernels with bound arguments and their global and local sizes, in order.

    A kernel does not keep its arguments alive, so `bindings` does.
    """

    bindings: Mapping[str, Any]
    launches: tuple[tuple[Any, tuple[int, int, int], tuple[int, int, int]], ...]


class OpenCLDevice:
    """One device with an in-order profiling queue; see `workers.backends.base.Device`."""

    clock = "opencl-event"

    def __init__(self, device: Any) -> None:
        import pyopencl as cl

        warnings.filterwarnings("ignore", category=cl.CompilerWarning)
        self._cl = cl
        self._device = device
        self._context = cl.Context([device])
        self._queue = cl.CommandQueue(
            self._context, properties=cl.command_queue_properties.PROFILING_ENABLE
        )
        self._flush_buffer: Any = None
        self.info = _device_info(device)

    # -- compile -------------------------------------------------------------------------------

    def compile(
        self, source: str, build_options: Sequence[str], entries: Sequence[str]
    ) -> CompiledCode:
        """Builds the source and reads features from the bitcode where the driver gives it."""
        cl = self._cl
        try:
            program = cl.Program(self._context, source).build(
                options=list(build_options), devices=[self._device], cache_dir=False
            )
            kernels = [cl.Kernel(program, entry) for entry in entries]
        except cl.Error as error:
            raise CompileFailure(_explain(error, entries)) from None
        binary: bytes = program.get_info(cl.program_info.BINARIES)[0]
        log = program.get_build_info(self._device, cl.program_build_info.LOG) or ""
        features, code_hash, forbidden = self._inspect(source, binary, entries)
        return CompiledCode(
            binary=binary,
            log=_tidy(log),
            code_hash=code_hash,
            features=features,
            resources=self._resources(kernels, binary),
            forbidden=forbidden,
        )

    def _inspect(
        self, source: str, binary: bytes, entries: Sequence[str]
    ) -> tuple[CodeFeatures | None, str, str]:
        """Returns features, code hash and what is forbidden, from the best evidence there is."""
        if binary.startswith(_POCL_MAGIC):
            from workers import features_llvm

            bitcode = features_llvm.bitcode_from_pocl_binary(binary)
            if bitcode is not None:
                forbidden = features_llvm.forbidden_constructs(bitcode, entries)
                features = features_llvm.features_from_bitcode(bitcode, entries)
                return features, features_llvm.code_hash(bitcode, entries), forbidden
        from workers import features_source

        features = features_source.features_from_source(source, "opencl", entries)
        forbidden = opencl_text.forbidden_in_text(source, binary, self.info.kind)
        return features, hashlib.sha256(binary).hexdigest()[:16], forbidden

    def _resources(self, kernels: Sequence[Any], binary: bytes) -> Resources:
        which = self._cl.kernel_work_group_info

        def worst(name: str) -> int | None:
            try:
                field = getattr(which, name)
                return max(int(k.get_work_group_info(field, self._device)) for k in kernels)
            except (self._cl.Error, AttributeError):
                return None

        return Resources(
            local_mem_bytes=worst("LOCAL_MEM_SIZE"),
            private_mem_bytes=worst("PRIVATE_MEM_SIZE"),
            preferred_work_group_multiple=worst("PREFERRED_WORK_GROUP_SIZE_MULTIPLE"),
            binary_bytes=len(binary),
        )

    # -- load and bind -------------------------------------------------------------------------

    def load(self, binary: bytes, source: str, build_options: Sequence[str]) -> Any:
        """Loads the binary; builds the source if there is none or the driver refuses it."""
        cl = self._cl
        options = list(build_options)
        if binary:
            try:
                return cl.Program(self._context, [self._device], [binary]).build(options=options)
            except cl.Error:
                if not source:
                    raise LaunchFailure("the driver refuses the binary", sticky=False) from None
        try:
            program = cl.Program(self._context, source)
            return program.build(options=options, devices=[self._device], cache_dir=False)
        except cl.Error as error:
            raise LaunchFailure(_first_error(_explain(error, ())), sticky=False) from None

    def prepare(
        self, module: Any, launches: Sequence[Launch], bindings: Mapping[str, Any]
    ) -> _Call:
        """Makes one kernel object per launch, so that each keeps its arguments."""
        prepared = []
        for launch in launches:
            kernel = self._kernel(module, launch.entry)
            self._check_sizes(kernel, launch)
            self._bind(kernel, launch, bindings)
            (gx, gy, gz), (bx, by, bz) = launch.grid, launch.block
            prepared.append((kernel, (gx * bx, gy * by, gz * bz), launch.block))
        return _Call(dict(bindings), tuple(prepared))

    def _kernel(self, module: Any, entry: str) -> Any:
        try:
            return self._cl.Kernel(module, entry)
        except self._cl.Error:
            raise LaunchFailure(f"the program has no kernel '{entry}'", sticky=False) from None

    def _check_sizes(self, kernel: Any, launch: Launch) -> None:
        """Compares a launch with the limits of device and kernel."""
        info, which = self.info, self._cl.kernel_work_group_info

        def refuse(reason: str) -> LaunchFailure:
            return LaunchFailure(f"launch of '{launch.entry}' refused: {reason}", sticky=False)

        if min(launch.grid) < 1 or min(launch.block) < 1:
            raise refuse(f"grid {launch.grid} and block {launch.block} must be at least 1")
        for axis, (size, limit) in enumerate(zip(launch.block, info.max_block, strict=True)):
            if size > limit:
                raise refuse(f"block has {size} work-items along axis {axis}, at most {limit}")
        items = int(np.prod(launch.block))
        limit = info.max_work_group_size
        limit = min(limit, int(kernel.get_work_group_info(which.WORK_GROUP_SIZE, self._device)))
        if items > limit:
            raise refuse(f"block {launch.block} has {items} work-items, at most {limit}")
        required = kernel.get_work_group_info(which.COMPILE_WORK_GROUP_SIZE, self._device)
        if any(required) and tuple(required) != launch.block:
            raise refuse(f"the kernel requires block {tuple(required)}, not {launch.block}")
        local = int(kernel.get_work_group_info(which.LOCAL_MEM_SIZE, self._device))
        local += launch.shared_bytes
        if local > info.local_mem_bytes:
            raise refuse(f"{local} bytes of local memory, at most {info.local_mem_bytes}")

    def _bind(self, kernel: Any, launch: Launch, bindings: Mapping[str, Any]) -> None:
        """Sets arguments in order; dynamic local memory, if any, is one more, the last."""
        cl = self._cl
        values = []
        for name in launch.args:
            if name not in bindings:
                allowed = ", ".join(sorted(bindings))
                message = f"launch of '{launch.entry}': no argument '{name}'; allowed: {allowed}"
                raise LaunchFailure(message, sticky=False)
            value = bindings[name]
            values.append(value.payload if isinstance(value, _Buffer) else value)
        if launch.shared_bytes:
            values.append(cl.LocalMemory(launch.shared_bytes))
        if len(values) != kernel.num_args:
            raise LaunchFailure(
                f"kernel '{launch.entry}' takes {kernel.num_args} arguments, not {len(values)}",
                sticky=False,
            )
        names = [*launch.args, "dynamic local memory"]
        for index, value in enumerate(values):
            try:
                kernel.set_arg(index, value)
            except cl.Error as error:
                raise LaunchFailure(
                    f"kernel '{launch.entry}' refuses '{names[index]}' as argument {index}: "
                    f"{_one_line(error)}",
                    sticky=False,
                ) from None

    # -- memory --------------------------------------------------------------------------------

    def allocate(self, total_bytes: int, payload_start: int, payload_bytes: int) -> _Buffer:
        """Allocates one buffer; kernels get a sub-buffer of it."""
        flags = self._cl.mem_flags.READ_WRITE
        try:
            whole = self._cl.Buffer(self._context, flags, total_bytes)
            payload = whole.get_sub_region(payload_start, max(payload_bytes, 1), flags)
        except self._cl.Error as error:
            message = f"can't allocate {total_bytes} bytes: {_one_line(error)}"
            raise LaunchFailure(message, sticky=False) from None
        return _Buffer(whole, payload)

    def write(self, buffer: _Buffer, start: int, data: Bytes) -> None:
        """Copies host bytes to the device."""
        if data.size:
            with self._driver("copy to the device"):
                self._cl.enqueue_copy(
                    self._queue, buffer.whole, data, dst_offset=start, is_blocking=True
                )

    def read(self, buffer: _Buffer, start: int, nbytes: int) -> Bytes:
        """Copies device bytes to the host."""
        data = np.empty(nbytes, dtype=np.uint8)
        if nbytes:
            with self._driver("copy from the device"):
                self._cl.enqueue_copy(
                    self._queue, data, buffer.whole, src_offset=start, is_blocking=True
                )
        return data

    def fill(self, fills: Sequence[Fill]) -> None:
        """Repeats patterns over regions."""
        with self._driver("fill"):
            self._enqueue_fills(fills)
            self._queue.finish()

    # -- run and measure -----------------------------------------------------------------------

    def run(self, call: _Call) -> None:
        """Runs a call to its end."""
        with self._driver("run"):
            first, last = self._enqueue(call)
            self._queue.finish()
            self._check([first, last])

    def measure(
        self, call: _Call, count: int, fills: Sequence[Fill], flush_bytes: int
    ) -> tuple[float, ...]:
        """Times calls by the profiling events of their first and last launch."""
        times: list[float] = []
        with self._driver("time"):
            while len(times) < count:
                batch = min(_CALLS_IN_FLIGHT, count - len(times))
                times += self._measure_batch(call, batch, fills, flush_bytes)
        return tuple(times)

    def _measure_batch(
        self, call: _Call, count: int, fills: Sequence[Fill], flush_bytes: int
    ) -> list[float]:
        """Enqueues all calls behind a closed gate, then opens it.

        Otherwise the host's enqueue time would show between the launches of one call.
        """
        cl = self._cl
        gate = cl.UserEvent(self._context)
        spans = []
        try:
            cl.enqueue_barrier(self._queue, wait_for=[gate])
            for _ in range(count):
                self._enqueue_fills(fills)
                self._enqueue_flush(flush_bytes)
                spans.append(self._enqueue(call))
        finally:
            gate.set_status(cl.command_execution_status.COMPLETE)
            self._queue.finish()
        self._check([event for span in spans for event in span])
        return [(last.profile.end - first.profile.start) / 1e3 for first, last in spans]

    def _enqueue(self, call: _Call) -> tuple[Any, Any]:
        """Enqueues a call; returns the events of its first and last launch."""
        events = [
            self._cl.enqueue_nd_range_kernel(self._queue, kernel, size, block)
            for kernel, size, block in call.launches
        ]
        return events[0], events[-1]

    def _enqueue_fills(self, fills: Sequence[Fill]) -> None:
        for fill in fills:
            if fill.nbytes:
                pattern = np.frombuffer(fill.pattern, dtype=f"<u{len(fill.pattern)}")
                self._cl.enqueue_fill_buffer(
                    self._queue, fill.buffer.whole, pattern, fill.start, fill.nbytes
                )

    def _enqueue_flush(self, flush_bytes: int) -> None:
        if not flush_bytes:
            return
        if self._flush_buffer is None or self._flush_buffer.size < flush_bytes:
            flags = self._cl.mem_flags.READ_WRITE
            self._flush_buffer = self._cl.Buffer(self._context, flags, flush_bytes)
        self._cl.enqueue_fill_buffer(
            self._queue, self._flush_buffer, np.zeros(1, np.uint8), 0, self._flush_buffer.size
        )

    def _check(self, events: Sequence[Any]) -> None:
        """Raises if any command ended in an error that nobody has been told of."""
        for event in events:
            status = event.command_execution_status
            if status < 0:
                raise LaunchFailure(f"the kernel failed with OpenCL error {status}", sticky=True)

    def _driver(self, doing: str) -> _DriverErrors:
        return _DriverErrors(self._cl, doing)


class _DriverErrors:
    """Turns driver errors inside a `with` block into `LaunchFailure`."""

    def __init__(self, cl: Any, doing: str) -> None:
        self._cl = cl
        self._doing = doing

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, self._cl.Error):
            line = _one_line(error)
            sticky = not any(name in line for name in _HARMLESS_ERRORS)
            raise LaunchFailure(f"{self._doing} failed: {line}", sticky=sticky) from None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


def _first_error(log: str) -> str:
    lines = log.splitlines()
    return next((line for line in lines if "error" in line.lower()), lines[0])


def _tidy(log: str) -> str:
    """Names the source "kernel.cl" instead of the driver's temporary file."""
    return re.sub(r"\S*/\w+\.cl(?=:\d)", "kernel.cl", log).strip()


def _explain(error: BaseException, entries: Sequence[str]) -> str:
    """Returns the compiler's own words from pyopencl's message."""
    text = str(error)
    if "INVALID_KERNEL_NAME" in text:
        return f"the source lacks a kernel; wanted: {', '.join(entries)}"
    match = re.search(r"Build on <.*?>:\n+(.*?)(?:\n*\(options: .*\))?\s*\Z", text, re.DOTALL)
    return _tidy(match.group(1) if match else text) or "the build failed without a message"
