from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evo import errors
from evo.errors import EvoError, ProtocolError
from evo.evaluation import (
    Correctness,
    Environment,
    Evaluation,
    EvaluationStatus,
    Resources,
    Timing,
    WorkloadTiming,
)
from evo.genome import Candidate, Genome
from evo.job import (
    DeviceInfo,
    EvaluationRequest,
    EvaluationSettings,
    Launch,
    Program,
    Purpose,
    Scratch,
    WorkloadProgram,
)
from evo.serial import content_hash, from_builtins, from_json, to_builtins, to_json

RECORDS = (
    *(Candidate, Genome, Correctness, Environment, Evaluation, Resources, Timing, WorkloadTiming),
    *(DeviceInfo, EvaluationRequest, EvaluationSettings, Launch, Program, Scratch, WorkloadProgram),
)

PASSED = Correctness(passed=True, checks=9)
FAILED = Correctness(passed=False, checks=2)
TIMING = Timing(
    log_speedups=(0.5, 0.6),
    workloads=(WorkloadTiming(workload="square", latency_us=10.0, baseline_us=17.0),),
)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_records_are_frozen_slotted_and_keyword_only(record):
    assert record.__dataclass_params__.frozen
    assert all(item.kw_only for item in dataclasses.fields(record))
    assert "__slots__" in vars(record)


def test_an_ok_evaluation_has_a_timing_or_says_that_it_was_not_measured():
    with pytest.raises(ValueError, match="needs a timing"):
        Evaluation(job_id="j", status=EvaluationStatus.OK)
    Evaluation(job_id="j", status=EvaluationStatus.OK, measured=False)
    Evaluation(job_id="j", status=EvaluationStatus.OK, correctness=PASSED, timing=TIMING)


@pytest.mark.parametrize("correctness", [None, FAILED])
def test_no_timing_without_passed_correctness(correctness):
    with pytest.raises(ValueError, match="passed correctness"):
        Evaluation(job_id="j", status=EvaluationStatus.HACK, correctness=correctness, timing=TIMING)


@pytest.mark.parametrize("status", EvaluationStatus)
def test_only_ok_and_hack_may_carry_a_timing(status):
    def make() -> Evaluation:
        return Evaluation(job_id="j", status=status, correctness=PASSED, timing=TIMING)

    if status in (EvaluationStatus.OK, EvaluationStatus.HACK):
        assert make().timing == TIMING
    else:
        with pytest.raises(ValueError, match="carries no timing"):
            make()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_ratios_are_finite(value):
    with pytest.raises(ValueError, match="non-finite"):
        Timing(log_speedups=(0.1, value), workloads=TIMING.workloads)
    with pytest.raises(ValueError, match="non-finite"):
        Timing(log_speedups=(0.1,), workloads=TIMING.workloads, rival_log_ratios=(value,))


def test_a_timing_has_a_block_and_a_workload():
    with pytest.raises(ValueError, match="at least one"):
        Timing(log_speedups=(), workloads=TIMING.workloads)
    with pytest.raises(ValueError, match="at least one"):
        Timing(log_speedups=(0.1,), workloads=())


values = st.one_of(
    st.booleans(), st.integers(-(2**40), 2**40), st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
)  # fmt: skip
genomes = st.builds(
    Genome,
    template=st.text(max_size=8),
    template_hash=st.text(max_size=8),
    params=st.dictionaries(st.text(min_size=1, max_size=5), values, max_size=5),
)


@given(genomes)
def test_a_genome_survives_json_with_the_types_of_its_values(genome):
    back = from_json(to_json(genome), Genome)
    assert back == genome
    assert back.key == genome.key
    assert [type(v) for v in back.params.values()] == [type(genome.params[k]) for k in back.params]
    assert from_builtins(to_builtins(genome), Genome) == genome


@given(genomes)
def test_a_genomes_key_ignores_the_order_of_its_parameters(genome):
    turned = dict(reversed(genome.params.items()))
    assert dataclasses.replace(genome, params=turned).key == genome.key
    assert dataclasses.replace(genome, template_hash=genome.template_hash + "x").key != genome.key


def test_a_genomes_key_depends_on_values_and_their_types():
    def key(value: object) -> str:
        return Genome(template="t", template_hash="h", params={"p": value}).key

    assert len({key(1), key(2), key(True), key("1")}) == 4


def test_requests_survive_json():
    launch = Launch(entry="f", args=("x",), grid=(1, 2, 3), block=(4, 1, 1))
    program = Program(
        backend="opencl",
        template="opencl_a",
        workloads=(WorkloadProgram(workload="w", source="s", launches=(launch,)),),
    )
    request = EvaluationRequest(
        job_id="j", task_hash="t", candidate=program, baseline=program, purpose=Purpose.DUEL,
        settings=EvaluationSettings(race_cells={"0-0-0": 0.1}),
    )  # fmt: skip
    assert from_json(to_json(request), EvaluationRequest) == request


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"id": 3}', b'{"id": "c"}', b"\xff"])
def test_what_does_not_fit_a_record_is_a_protocol_error(text):
    with pytest.raises(ProtocolError, match="not a valid Candidate"):
        from_json(text, Candidate)


def test_a_forged_record_is_refused_by_its_validator():
    forged = to_builtins(
        Evaluation(job_id="j", status=EvaluationStatus.OK, correctness=PASSED, timing=TIMING)
    )
    forged["correctness"]["passed"] = False
    with pytest.raises(ProtocolError, match="passed correctness"):
        from_builtins(forged, Evaluation)


def test_content_hash_is_of_the_content():
    assert content_hash({"a": 1, "b": 2}) == content_hash({"b": 2, "a": 1})
    assert content_hash({"a": 1}) != content_hash({"a": 2})
    assert len(content_hash(b"")) == 16


def test_every_error_has_the_root_and_a_line_of_doc():
    found = [item for item in vars(errors).values() if isinstance(item, type)]
    assert EvoError in found
    for item in found:
        assert issubclass(item, EvoError)
        assert item.__doc__
