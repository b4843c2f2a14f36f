from __future__ import annotations

import asyncio
import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from grpc_health.v1 import health_pb2, health_pb2_grpc
from hypothesis import given
from hypothesis import strategies as st

from evo.errors import ConfigError, WorkerUnavailable
from evo.evaluation import EvaluationStatus
from tests.workers.fake_worker import BUNDLE, request, run, serving
from workers.client import WorkerClient
from workers.convert import evaluate_message
from workers.pool import WorkerPool
from workers.proto.v1 import worker_pb2 as pb
from workers.proto.v1 import worker_pb2_grpc
from workers.security import (
    TOKEN_VARIABLE,
    ClientSecurity,
    ServerSecurity,
    is_loopback,
    join_address,
    read_token,
    split_address,
)


@pytest.fixture(autouse=True)
def _no_token_around(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)


@dataclass
class Authority:
    """A CA made for one test."""

    folder: Path
    name: str

    def __post_init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._certificate = self._sign(self._key, self.name, is_ca=True)
        self.path = self._write("ca", self._certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str) -> tuple[str, str]:
        """Returns the paths of a certificate for loopback and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._sign(key, name, is_ca=False)
        pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return (
            self._write(name, certificate.public_bytes(serialization.Encoding.PEM)),
            self._write(f"{name}-key", pem),
        )

    def _sign(self, key: ec.EllipticCurvePrivateKey, name: str, is_ca: bool) -> x509.Certificate:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self.name)])
        now = datetime.datetime.now(datetime.UTC)
        names = [x509.DNSName(name), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, hashes.SHA256())
        )

    def _write(self, name: str, content: bytes) -> str:
        path = self.folder / f"{self.name}-{name}.pem"
        path.write_bytes(content)
        return str(path)


async def evaluated(address: str, security: ClientSecurity) -> EvaluationStatus:
    client = WorkerClient(address, security=security)
    try:
        await client.connect()
        await client.put_task(BUNDLE)
        return (await client.evaluate(request("sleep:0"))).status
    finally:
        await client.close()


@pytest.mark.parametrize("given_token", [None, "wrong", "secre", "secrets"])
def test_wrong_token_is_refused_by_every_call(given_token: str | None):
    async def codes() -> dict[str, grpc.StatusCode]:
        metadata = ClientSecurity(token=given_token).metadata()
        found = {}
        async with (
            serving(security=ServerSecurity(token="secret")) as (_, address),
            grpc.aio.insecure_channel(address) as channel,
        ):
            stub = worker_pb2_grpc.WorkerServiceStub(channel)
            unary = {
                "GetCapabilities": pb.GetCapabilitiesRequest(),
                "PutTask": pb.PutTaskRequest(),
                "CancelEvaluation": pb.CancelEvaluationRequest(),
                "Drain": pb.DrainRequest(),
            }
            for name, message in unary.items():
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await getattr(stub, name)(message, metadata=metadata)
                found[name] = caught.value.code()
            streams = {
                "Evaluate": evaluate_message(request("sleep:0"), "me"),
                "WaitEvaluation": pb.WaitEvaluationRequest(),
            }
            for name, message in streams.items():
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await getattr(stub, name)(message, metadata=metadata).read()
                found[name] = caught.value.code()
        return found

    found = run(codes())
    assert len(found) == 6
    assert set(found.values()) == {grpc.StatusCode.UNAUTHENTICATED}


def test_token_opens_a_loopback_worker():
    async def scenario():
        async with serving(security=ServerSecurity(token="secret")) as (_, address):
            return await evaluated(address, ClientSecurity(token="secret"))

    assert run(scenario()) is EvaluationStatus.OK


def test_refused_token_is_a_config_error_that_says_where_to_set_it():
    async def scenario():
        async with serving(security=ServerSecurity(token="secret")) as (_, address):
            await evaluated(address, ClientSecurity())

    with pytest.raises(ConfigError, match=f"refuses the token: .*{TOKEN_VARIABLE}"):
        run(scenario())


def test_health_needs_no_token():
    async def scenario():
        async with (
            serving(security=ServerSecurity(token="secret")) as (_, address),
            grpc.aio.insecure_channel(address) as channel,
        ):
            stub = health_pb2_grpc.HealthStub(channel)
            return (await stub.Check(health_pb2.HealthCheckRequest())).status

    assert run(scenario()) == health_pb2.HealthCheckResponse.SERVING


def test_tls_with_a_token_through_the_pool(tmp_path: Path):
    ca = Authority(tmp_path, "authority")
    certificate, key = ca.issue("worker")
    token = tmp_path / "token"
    token.write_text("secret\n")
    server = ServerSecurity.load(token_file=str(token), tls_cert=certificate, tls_key=key)

    async def scenario():
        async with serving(security=server) as (_, address):
            pool = WorkerPool([address], token_file=str(token), tls_ca=ca.path)
            await pool.start(BUNDLE)
            result = await pool.evaluate(request("sleep:0"))
            await pool.close()
            return result.status

    assert run(scenario()) is EvaluationStatus.OK


def test_certificate_of_another_authority_is_refused(tmp_path: Path):
    certificate, key = Authority(tmp_path, "theirs").issue("worker")
    ours = Authority(tmp_path, "ours")
    server = ServerSecurity.load(tls_cert=certificate, tls_key=key)

    async def scenario():
        async with serving(security=server) as (_, address):
            await evaluated(address, ClientSecurity.load(tls_ca=ours.path))

    with pytest.raises(WorkerUnavailable, match="TLS: .*handshake"):
        run(scenario())


def test_certificate_of_another_name_needs_the_name_told(tmp_path: Path):
    ca = Authority(tmp_path, "authority")
    certificate, key = ca.issue("gpubox.example")
    server = ServerSecurity.load(tls_cert=certificate, tls_key=key)

    async def scenario(name: str):
        async with serving(security=server) as (_, address):
            return await evaluated(
                address, ClientSecurity.load(tls_ca=ca.path, tls_server_name=name)
            )

    assert run(scenario("gpubox.example")) is EvaluationStatus.OK
    with pytest.raises(WorkerUnavailable):
        run(scenario("other.example"))


def test_plain_client_gets_nothing_from_a_tls_worker(tmp_path: Path):
    certificate, key = Authority(tmp_path, "authority").issue("worker")
    server = ServerSecurity.load(tls_cert=certificate, tls_key=key)

    async def scenario():
        async with serving(security=server) as (_, address):
            await evaluated(address, ClientSecurity())

    with pytest.raises(WorkerUnavailable):
        run(scenario())


def test_mutual_tls_wants_a_certificate_of_the_right_authority(tmp_path: Path):
    ca, other = Authority(tmp_path, "authority"), Authority(tmp_path, "other")
    certificate, key = ca.issue("worker")
    server = ServerSecurity.load(tls_cert=certificate, tls_key=key, tls_client_ca=ca.path)

    async def scenario(client: ClientSecurity):
        async with serving(security=server) as (_, address):
            return await evaluated(address, client)

    def holding(pair: tuple[str, str]) -> ClientSecurity:
        return ClientSecurity.load(tls_ca=ca.path, tls_client_cert=pair[0], tls_client_key=pair[1])

    assert run(scenario(holding(ca.issue("controller")))) is EvaluationStatus.OK
    with pytest.raises(WorkerUnavailable):
        run(scenario(ClientSecurity.load(tls_ca=ca.path)))
    with pytest.raises(WorkerUnavailable):
        run(scenario(holding(other.issue("controller"))))


def test_unusable_certificate_is_told_apart_from_a_taken_port():
    async def scenario():
        async with serving(security=ServerSecurity(certificate=b"no", key=b"pem")):
            pass

    with pytest.raises(ConfigError, match="the certificate or key cannot be used"):
        run(scenario())


@pytest.mark.parametrize(
    ("security", "missing"),
    [
        (ServerSecurity(), "--tls-cert and --tls-key and a token"),
        (ServerSecurity(token="t"), "without --tls-cert and --tls-key:"),
        (ServerSecurity(certificate=b"c", key=b"k"), r"without a token \(--token-file"),
    ],
)
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "gpubox"])
def test_open_bind_is_refused_and_says_what_is_missing(
    host: str, security: ServerSecurity, missing: str
):
    with pytest.raises(ConfigError, match=missing):
        security.check_bind(host, insecure_bind=False)
    security.check_bind(host, insecure_bind=True)


def test_open_bind_with_tls_and_token_and_any_loopback_bind_are_fine():
    ServerSecurity(token="t", certificate=b"c", key=b"k").check_bind("0.0.0.0", insecure_bind=False)
    for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost"):
        ServerSecurity().check_bind(host, insecure_bind=False)


def test_server_itself_refuses_an_open_bind():
    async def scenario():
        async with serving(host="0.0.0.0"):
            pass

    with pytest.raises(ConfigError, match=r"refusing to listen on 0\.0\.0\.0"):
        run(scenario())


def test_client_does_not_send_its_token_in_the_clear_to_other_hosts():
    async def opened(security: ClientSecurity, address: str) -> None:
        await security.channel(address, []).close()

    with pytest.raises(ConfigError, match="refusing to send the worker token to gpubox:1"):
        asyncio.run(opened(ClientSecurity(token="t"), "gpubox:1"))
    asyncio.run(opened(ClientSecurity(token="t", insecure=True), "gpubox:1"))
    asyncio.run(opened(ClientSecurity(token="t"), "127.0.0.1:1"))
    asyncio.run(opened(ClientSecurity(), "gpubox:1"))


def test_token_comes_from_the_file_then_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    assert read_token(None) is None
    monkeypatch.setenv(TOKEN_VARIABLE, "from-environment")
    assert read_token(None) == "from-environment"
    (tmp_path / "token").write_text("  from-file\n")
    assert read_token(tmp_path / "token") == "from-file"


@pytest.mark.parametrize("content", ["", "\n", "two words", "schlüssel", "a\x00b"])
def test_unusable_token_is_a_config_error(tmp_path: Path, content: str):
    path = tmp_path / "token"
    path.write_text(content)
    with pytest.raises(ConfigError, match=f"token file {path}"):
        read_token(path)


def test_secrets_stay_out_of_reprs():
    shown = repr(ServerSecurity(token="hush", key=b"hush")) + repr(ClientSecurity(token="hush"))
    assert "hush" not in shown


@pytest.mark.parametrize(
    ("load", "message"),
    [
        (lambda: ServerSecurity.load(tls_cert="x"), "go together"),
        (lambda: ServerSecurity.load(tls_client_ca="x"), "needs --tls-cert"),
        (lambda: ServerSecurity.load(tls_cert="/no/a", tls_key="/no/b"), "cannot read certificate"),
        (lambda: ServerSecurity.load(token_file="/no/t"), "cannot read token file /no/t: No such"),
        (lambda: ClientSecurity.load(tls_client_cert="x"), "go together"),
        (lambda: ClientSecurity.load(tls_client_cert="x", tls_client_key="y"), "needs tls_ca"),
    ],
)
def test_half_or_missing_files_are_config_errors(load, message: str):
    with pytest.raises(ConfigError, match=message):
        load()


@given(
    host=st.one_of(
        st.ip_addresses(v=4).map(str),
        st.ip_addresses(v=6).map(str),
        st.from_regex(r"[a-z][a-z0-9-]{0,20}(\.[a-z]{2,5})?", fullmatch=True),
    ),
    port=st.integers(1, 65535),
)
def test_addresses_split_as_they_were_joined(host: str, port: int):
    assert split_address(join_address(host, port)) == (host, port)


@given(st.ip_addresses())
def test_loopback_is_what_the_standard_says(address):
    assert is_loopback(str(address)) == address.is_loopback
