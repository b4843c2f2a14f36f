"""Who may talk to a worker: bind rules, TLS files, the shared token.

A worker runs what it is sent: device code, and the Python of a task's reference. So it listens on
loopback unless its owner gives it a certificate and a token, or says in so many words that neither
is wanted.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from evo.errors import ConfigError
from workers.convert import REASON_KEY, Reason

TOKEN_VARIABLE = "KELITES_WORKER_TOKEN"
_OPEN_METHODS = "/grpc.health.v1.Health/"


def is_loopback(host: str) -> bool:
    """Tells whether a host names this machine only; names other than localhost do not."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def join_address(host: str, port: int) -> str:
    """Returns "host:port", with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """Splits "host:port" or "[v6]:port".

    Raises:
        ConfigError: If it is neither.
    """
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(f"worker address {address!r} is not host:port (port 1 to 65535)")
    if ":" in host and not bracketed:
        raise ConfigError(f"worker address {address!r}: write an IPv6 host in brackets")
    return host.strip("[]"), int(port)


def read_token(token_file: str | os.PathLike[str] | None) -> str | None:
    """Returns the token from a file, else from KELITES_WORKER_TOKEN, else None.

    Raises:
        ConfigError: If the file cannot be read, or the token is empty or not printable ASCII.
    """
    if token_file is not None:
        source = f"token file {os.fspath(token_file)}"
        token = _read(token_file, "token file").decode("utf-8", "replace").strip()
    elif TOKEN_VARIABLE in os.environ:
        source = f"environment variable {TOKEN_VARIABLE}"
        token = os.environ[TOKEN_VARIABLE].strip()
    else:
        return None
    if not token:
        raise ConfigError(f"{source} is empty")
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise ConfigError(f"{source} must hold one word of printable ASCII")
    return token


def _read(path: str | os.PathLike[str], what: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"cannot read {what} {os.fspath(path)}: {reason}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSecurity:
    """What a daemon asks of its callers.

    Attributes:
        token: Shared secret; None asks for none.
        certificate: PEM chain the server shows; None serves without TLS.
        key: Its private key, PEM.
        client_ca: CA that client certificates must come from (mutual TLS).
    """

    token: str | None = field(default=None, repr=False)
    certificate: bytes | None = None
    key: bytes | None = field(default=None, repr=False)
    client_ca: bytes | None = None

    @classmethod
    def load(
        cls,
        *,
        token_file: str | None = None,
        tls_cert: str | None = None,
        tls_key: str | None = None,
        tls_client_ca: str | None = None,
    ) -> ServerSecurity:
        """Reads token and PEM files.

        Raises:
            ConfigError: If a file is missing or only half of a pair is given.
        """
        if (tls_cert is None) != (tls_key is None):
            raise ConfigError("--tls-cert and --tls-key go together")
        if tls_client_ca is not None and tls_cert is None:
            raise ConfigError("--tls-client-ca needs --tls-cert and --tls-key")
        return cls(
            token=read_token(token_file),
            certificate=_read(tls_cert, "certificate") if tls_cert else None,
            key=_read(tls_key, "private key") if tls_key else None,
            client_ca=_read(tls_client_ca, "client CA") if tls_client_ca else None,
        )

    def check_bind(self, host: str, *, insecure_bind: bool) -> None:
        """Refuses to open a worker to a network without TLS and a token.

        Raises:
            ConfigError: Saying what is missing.
        """
        if is_loopback(host) or insecure_bind:
            return
        missing = []
        if self.certificate is None:
            missing.append("--tls-cert and --tls-key")
        if self.token is None:
            missing.append(f"a token (--token-file or {TOKEN_VARIABLE})")
        if missing:
            raise ConfigError(
                f"refusing to listen on {host} without {' and '.join(missing)}: a worker runs the "
                "code it is sent (bind 127.0.0.1 and use ssh -L, or pass --insecure-bind)"
            )

    def credentials(self) -> grpc.ServerCredentials | None:
        """Returns TLS credentials, None for a plain port."""
        if self.certificate is None or self.key is None:
            return None
        return grpc.ssl_server_credentials(
            [(self.key, self.certificate)],
            root_certificates=self.client_ca,
            require_client_auth=self.client_ca is not None,
        )

    def interceptors(self) -> list[grpc.aio.ServerInterceptor]:
        """Returns the interceptors that enforce the token."""
        return [] if self.token is None else [TokenInterceptor(self.token)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSecurity:
    """What a controller shows to workers, and asks of them.

    Attributes:
        token: Sent with every call.
        ca: PEM of the CA that the worker's certificate must come from; turns TLS on.
        certificate: PEM chain of this client (mutual TLS).
        key: Its private key, PEM.
        server_name: Name to expect in the worker's certificate when it is not the host dialled,
            for example through an ssh tunnel.
        insecure: Sends the token to other hosts even without TLS.
    """

    token: str | None = field(default=None, repr=False)
    ca: bytes | None = None
    certificate: bytes | None = None
    key: bytes | None = field(default=None, repr=False)
    server_name: str | None = None
    insecure: bool = False

    @classmethod
    def load(
        cls,
        *,
        token_file: str | None = None,
        tls_ca: str | None = None,
        tls_client_cert: str | None = None,
        tls_client_key: str | None = None,
        tls_server_name: str | None = None,
        insecure: bool = False,
    ) -> ClientSecurity:
        """Reads token and PEM files.

        Raises:
            ConfigError: If a file is missing or only half of a pair is given.
        """
        if (tls_client_cert is None) != (tls_client_key is None):
            raise ConfigError("tls_client_cert and tls_client_key go together")
        if tls_client_cert is not None and tls_ca is None:
            raise ConfigError("tls_client_cert needs tls_ca, the CA of the workers' certificates")
        return cls(
            token=read_token(token_file),
            ca=_read(tls_ca, "CA") if tls_ca else None,
            certificate=_read(tls_client_cert, "client certificate") if tls_client_cert else None,
            key=_read(tls_client_key, "client key") if tls_client_key else None,
            server_name=tls_server_name,
            insecure=insecure,
        )

    def channel(self, address: str, options: Sequence[tuple[str, Any]]) -> grpc.aio.Channel:
        """Opens a channel; nothing is sent yet.

        Raises:
            ConfigError: If the address is malformed, or the token would travel in the clear.
        """
        host, _ = split_address(address)
        if self.ca is None:
            if self.token is not None and not is_loopback(host) and not self.insecure:
                raise ConfigError(
                    f"refusing to send the worker token to {address} without TLS: "
                    "set tls_ca, use ssh -L, or set insecure=true"
                )
            return grpc.aio.insecure_channel(address, options=list(options))
        credentials = grpc.ssl_channel_credentials(
            root_certificates=self.ca, private_key=self.key, certificate_chain=self.certificate
        )
        extra: list[tuple[str, Any]] = []
        if self.server_name is not None:
            extra.append(("grpc.ssl_target_name_override", self.server_name))
        return grpc.aio.secure_channel(address, credentials, options=[*options, *extra])

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Returns the metadata every call carries.

        Metadata, because Python allows call credentials on TLS channels only.
        """
        return () if self.token is None else (("authorization", f"Bearer {self.token}"),)


class TokenInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Refuses calls without the token; health checks stay open to monitors."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Lets a call through, or answers it UNAUTHENTICATED."""
        handler = await continuation(handler_call_details)
        if handler is None or handler_call_details.method.startswith(_OPEN_METHODS):
            return handler
        # All entries are compared, each in constant time: neither the position nor the length of
        # a matching prefix shows in how long a refusal takes.
        given = [
            value.encode() if isinstance(value, str) else value
            for key, value in handler_call_details.invocation_metadata
            if key == "authorization"
        ]
        accepted = [hmac.compare_digest(value, self._expected) for value in given]
        return handler if len(accepted) == 1 and accepted[0] else _refusal(handler)


async def _refuse(_: Any, context: grpc.aio.ServicerContext) -> Any:
    await context.abort(
        grpc.StatusCode.UNAUTHENTICATED,
        "this worker wants its token",
        ((REASON_KEY, Reason.TOKEN.value),),
    )


async def _refuse_stream(request: Any, context: grpc.aio.ServicerContext) -> Any:
    await _refuse(request, context)
    yield b""  # Unreachable; makes this a response stream.


def _refusal(handler: Any) -> Any:
    """Returns a handler of the same kind of call that refuses."""
    make: Callable[..., Any]
    if handler.request_streaming and handler.response_streaming:
        make = grpc.stream_stream_rpc_method_handler
    elif handler.request_streaming:
        make = grpc.stream_unary_rpc_method_handler
    elif handler.response_streaming:
        make = grpc.unary_stream_rpc_method_handler
    else:
        make = grpc.unary_unary_rpc_method_handler
    behaviour = _refuse_stream if handler.response_streaming else _refuse
    return make(
        behaviour,
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )
