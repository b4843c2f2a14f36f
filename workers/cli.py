"""The `kelites-worker` command: serve devices, say what this machine can run, test itself.

Exit codes: 0 done, 1 failed (no device, a check that did not pass), 2 wrong use (unknown option,
port in use, unreadable file). Errors are one line.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Sequence

from evo.errors import ConfigError, EvoError

LOG_LEVELS = ("debug", "info", "warning", "error")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    # gRPC's C core writes its own lines to stderr; ours say the same in words. Before its import.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    arguments = _parser().parse_args(argv)
    logging.basicConfig(
        level=arguments.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    try:
        return int(arguments.run(arguments))
    except EvoError as error:
        print(f"kelites-worker: {' '.join(str(error).split())}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    from workers.convert import DEFAULT_PORT, distribution_version

    parser = argparse.ArgumentParser(
        prog="kelites-worker",
        description="Evaluates kernels for kelites on this machine's devices.",
    )
    parser.add_argument("--version", action="version", version=distribution_version())
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--log-level", choices=LOG_LEVELS, default="info")
    device = argparse.ArgumentParser(add_help=False)
    device.add_argument("--backend", default="opencl", help="which backend (default: opencl)")
    device.add_argument(
        "--device",
        default="0",
        metavar="N[,N...]",
        help="device number, as `doctor` shows it; serve takes several alike (default: 0)",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    serve = commands.add_parser(
        "serve", parents=[common, device], help="serve until SIGTERM, Ctrl-C or a Drain call"
    )
    serve.add_argument("--host", default="127.0.0.1", help="address to bind (default: 127.0.0.1)")
    serve.add_argument(
        "--port", type=_port, default=DEFAULT_PORT, help=f"0: a free one (default: {DEFAULT_PORT})"
    )
    serve.add_argument("--address-file", metavar="FILE", help="write host:port here once serving")
    serve.add_argument("--name", help="name of this worker in results (default: the host's)")
    serve.add_argument(
        "--token-file", metavar="FILE", help="shared token (else KELITES_WORKER_TOKEN, if set)"
    )
    serve.add_argument("--tls-cert", metavar="PEM", help="certificate chain to show")
    serve.add_argument("--tls-key", metavar="PEM", help="its private key")
    serve.add_argument("--tls-client-ca", metavar="PEM", help="ask clients for a certificate of it")
    serve.add_argument(
        "--insecure-bind",
        action="store_true",
        help="listen beyond loopback without TLS and token: anyone who reaches the port runs code",
    )
    serve.add_argument("--reflection", action="store_true", help="offer gRPC reflection (grpcurl)")
    serve.add_argument(
        "--drain-grace",
        type=_seconds,
        default=120.0,
        metavar="S",
        help="seconds running jobs may take after SIGTERM (default: 120)",
    )
    serve.add_argument(
        "--orphan-grace",
        type=_seconds,
        default=60.0,
        metavar="S",
        help="seconds a job goes on when its controller is gone (default: 60)",
    )
    serve.set_defaults(run=_serve)

    doctor = commands.add_parser("doctor", parents=[common], help="show what this machine can run")
    doctor.set_defaults(run=_doctor)

    selftest = commands.add_parser(
        "selftest", parents=[common, device], help="check that measurements here can be trusted"
    )
    selftest.set_defaults(run=_selftest)
    return parser


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port (0 to 65535)")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value


def _known_backend(name: str) -> str:
    from workers.backends.base import backend_names

    allowed = backend_names()
    if name not in allowed:
        raise ConfigError(f"unknown backend {name!r}; there are: {', '.join(allowed)}")
    return name


def _device_numbers(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.isdecimal() for part in parts):
        raise ConfigError(f"--device {text!r} is not a number or a list of them, such as 0,1")
    numbers = [int(part) for part in parts]
    if len(set(numbers)) < len(numbers):
        raise ConfigError(f"--device {text!r} names a device twice")
    return numbers


def _serve(arguments: argparse.Namespace) -> int:
    from workers.security import ServerSecurity

    backend = _known_backend(arguments.backend)
    numbers = _device_numbers(arguments.device)
    security = ServerSecurity.load(
        token_file=arguments.token_file,
        tls_cert=arguments.tls_cert,
        tls_key=arguments.tls_key,
        tls_client_ca=arguments.tls_client_ca,
    )
    # Before anything heavy is imported: a refused bind should be told at once.
    security.check_bind(arguments.host, insecure_bind=arguments.insecure_bind)

    from workers.server import ServerSettings, WorkerServer, host_name, run_daemon
    from workers.service import EvaluationService

    name = arguments.name or host_name()
    settings = ServerSettings(
        host=arguments.host,
        port=arguments.port,
        insecure_bind=arguments.insecure_bind,
        reflection=arguments.reflection,
        worker_name=name,
        drain_grace_s=arguments.drain_grace,
        orphan_grace_s=arguments.orphan_grace,
    )

    async def serve() -> bool:
        services = [
            EvaluationService(backend=backend, device_index=number, worker_name=name)
            for number in numbers
        ]
        server = WorkerServer(services, settings=settings, security=security)
        await run_daemon(server, address_file=arguments.address_file)
        return server.clean

    if not asyncio.run(serve()):
        # A device's thread hangs in its driver; waiting for it would keep the process for ever.
        logging.getLogger(__name__).error("a device did not come back; leaving without it")
        sys.stdout.flush()
        os._exit(1)
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    from workers.doctor import examine, table

    findings = examine()
    print(table(findings))
    return 0 if any(item.state == "run" for item in findings) else 1


def _selftest(arguments: argparse.Namespace) -> int:
    backend = _known_backend(arguments.backend)
    numbers = _device_numbers(arguments.device)

    from workers.selftest import run_selftest

    failed = 0
    for number in numbers:
        for check in run_selftest(backend, number):
            print(f"{'ok  ' if check.passed else 'FAIL'}  {check.name}: {check.detail}", flush=True)
            failed += not check.passed
    print("all checks passed" if not failed else f"{failed} checks failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
