from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from tests.workers.fake_worker import ROOT, request
from workers import convert
from workers.convert import Reason
from workers.proto.v1 import worker_pb2 as pb
from workers.server import _CODES

GENERATOR = "1.76.0"
FOLDER = Path("workers/proto/v1")
GENERATED = ("worker_pb2.py", "worker_pb2.pyi", "worker_pb2_grpc.py")


def _generator_version() -> str:
    try:
        return metadata.version("grpcio-tools")
    except metadata.PackageNotFoundError:
        return ""


def _service():
    return pb.DESCRIPTOR.services_by_name["WorkerService"]


@pytest.mark.skipif(
    _generator_version() != GENERATOR, reason=f"regenerates with grpcio-tools {GENERATOR} only"
)
def test_generated_code_is_that_of_the_proto(tmp_path: Path):
    subprocess.run(
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            "-I.",
            f"--python_out={tmp_path}",
            f"--pyi_out={tmp_path}",
            f"--grpc_python_out={tmp_path}",
            str(FOLDER / "worker.proto"),
        ],
        cwd=ROOT,
        check=True,
    )
    for name in GENERATED:
        assert (tmp_path / FOLDER / name).read_text() == (ROOT / FOLDER / name).read_text(), name


def test_generated_descriptors_are_those_of_the_proto(tmp_path: Path):
    pytest.importorskip("grpc_tools")
    out = tmp_path / "worker.binpb"
    proto = str(FOLDER / "worker.proto")
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--descriptor_set_out={out}"]
    subprocess.run([*command, proto], cwd=ROOT, check=True)
    (compiled,) = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    for message in compiled.message_type:
        for field in message.field:
            field.ClearField("json_name")  # The Python generator leaves it out.
    generated = descriptor_pb2.FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(generated)
    assert generated == compiled


def test_generated_code_asks_for_an_old_runtime_only():
    # Code of a newer generator refuses to load on the oldest runtimes we allow.
    assert (
        f"GRPC_GENERATED_VERSION = '{GENERATOR}'"
        in (ROOT / FOLDER / "worker_pb2_grpc.py").read_text()
    )
    assert "# Protobuf Python Version: 6.31.1" in (ROOT / FOLDER / "worker_pb2.py").read_text()


def test_service_has_the_calls_and_streams_it_documents():
    assert _service().full_name == convert.SERVICE_NAME
    calls = {method.name: method.server_streaming for method in _service().methods}
    assert calls == {
        "GetCapabilities": False,
        "PutTask": False,
        "Evaluate": True,
        "WaitEvaluation": True,
        "CancelEvaluation": False,
        "Drain": False,
    }
    assert not any(method.client_streaming for method in _service().methods)


def test_every_call_has_messages_of_its_own():
    for method in _service().methods:
        assert method.input_type.name == f"{method.name}Request"
        assert method.output_type.name == f"{method.name}Response"


def test_enums_start_with_unspecified():
    for enum in pb.DESCRIPTOR.enum_types_by_name.values():
        assert enum.values_by_number[0].name == f"{enum.name.upper()}_UNSPECIFIED"


def test_stage_names_round_trip_and_unknown_ones_are_empty():
    assert set(convert.STAGES.values()) | {pb.STAGE_UNSPECIFIED} == set(pb.Stage.values())
    for name, number in convert.STAGES.items():
        assert convert.stage_name(number) == name
    assert convert.stage_name(pb.STAGE_UNSPECIFIED) == ""
    assert convert.stage_name(99) == ""


def test_every_reason_has_a_status_code():
    assert set(_CODES) == set(Reason)


def test_request_survives_its_envelope():
    sent = request("sleep:1")
    wire = convert.evaluate_message(sent, "me").SerializeToString()
    assert convert.request_from(pb.EvaluateRequest.FromString(wire)) == sent
