"""The plan of a training run: sizes, memory, time."""

from __future__ import annotations

import json
import math
from functools import partial

import pytest

from chainrule.config import TrainConfig
from chainrule.errors import ConfigError
from chainrule.training.collectives import (
    BUCKET,
    FIRST_BUCKET,
    Collective,
    Network,
    replicated_step,
    sharded_step,
)
from chainrule.training.planning import (
    Machines,
    activation_bytes,
    count_of,
    gpt_with,
    make_plan,
    shape_of,
    state_bytes,
    step_seconds,
)
from tests.conftest import Command

SMALL = {"vocabulary": 500, "context": 64, "width": 128, "layers": 4, "heads": 2}


def test_numbers_have_the_suffixes_of_the_field() -> None:
    assert count_of("1.5B", "--parameters") == 1_500_000_000
    assert count_of("124m", "--parameters") == 124_000_000
    with pytest.raises(ConfigError, match="for example --tokens"):
        count_of("many", "--tokens")


def test_hardware_that_is_not_known_is_refused_with_what_is() -> None:
    assert Machines.parse("8xa100").gpu.memory == 80e9
    with pytest.raises(ConfigError, match="did you mean 'A100'"):
        Machines.parse("8xA1000")
    with pytest.raises(ConfigError, match="for example --gpus 8xA100"):
        Machines.parse("A100")


@pytest.mark.parametrize("parameters", [124e6, 1.5e9, 7e9])
def test_the_planned_model_has_the_number_of_parameters(parameters: float) -> None:
    assert gpt_with(round(parameters), vocabulary=50304, context=1024).parameters == pytest.approx(parameters, rel=0.1)


def test_sharding_divides_the_states_but_for_what_is_gathered() -> None:
    shape = gpt_with(10**9, vocabulary=50304, context=1024)
    whole, part = (state_bytes(shape, parallel, 8, TrainConfig()) for parallel in ("ddp", "fsdp"))
    assert whole == pytest.approx(16 * shape.parameters, rel=0.01)  # weights, gradients, two moments; 4 bytes each
    assert whole / 8 < part < whole / 3


def test_activations_grow_with_rows_and_are_smaller_in_half_precision() -> None:
    shape = shape_of(SMALL)
    assert activation_bytes(shape, 4, half=False) == 4 * activation_bytes(shape, 1, half=False)
    assert activation_bytes(shape, 1, half=True) < activation_bytes(shape, 1, half=False)


def test_communication_is_hidden_by_computation_until_it_takes_longer() -> None:
    shape = shape_of(SMALL)
    for parallel in ("ddp", "fsdp"):
        fast, slow = (
            step_seconds(shape, parallel, 4, 4096, 1, speed=1e12, bandwidth=bandwidth, latency=0.0)
            for bandwidth in (1e12, 1e6)
        )
        assert fast[2] == fast[0]
        assert slow[2] > slow[1]
    assert step_seconds(shape, "ddp", 1, 4096, 1, speed=1e12, bandwidth=1.0)[1] == 0


def test_processes_that_share_their_cores_with_the_network_hide_nothing() -> None:
    calls = (Collective(0.001, 1e9), Collective(0.002, 2e9), Collective(0.003, 1e9))
    beside, instead = Network(*calls), Network(*calls, overlaps=False)
    for step in (partial(replicated_step, 2.0, 1e9, 1), partial(sharded_step, 2.0, 1e9, 1e8, 4, 1)):
        assert step(instead).seconds == step(instead).compute + step(instead).communication
        assert step(beside).seconds < step(instead).seconds


def test_every_bucket_of_gradients_and_every_block_is_a_call() -> None:
    slow = Network(*[Collective(1.0, math.inf)] * 3, overlaps=False)
    assert replicated_step(0.0, FIRST_BUCKET, 1, slow).seconds == 1
    assert replicated_step(0.0, FIRST_BUCKET + 2 * BUCKET + 1, 1, slow).seconds == 4
    assert sharded_step(0.0, 1e9, 1e8, 3, 1, slow).seconds == 3 * 3 + 2  # two passes gather, one scatters
    assert sharded_step(0.0, 1e9, 1e8, 3, 2, slow).seconds == 5 * 3 + 3


def test_what_is_in_no_block_is_gathered_once_per_piece() -> None:
    slow = Network(Collective(0.0, 1.0), Collective(0.0, 1.0), Collective(0.0, 1.0), overlaps=False)
    assert sharded_step(0.0, 100.0, 30.0, 7, 1, slow).seconds == 2 * 70 + 30 + 100
    assert sharded_step(0.0, 100.0, 30.0, 7, 4, slow).seconds == 4 * (2 * 70 + 30) + 100


def test_a_ring_sends_all_but_its_own_part() -> None:
    ring = Network.ring(4, 1e9, 0.0)
    assert ring.all_gather.seconds(4e9, 1) == pytest.approx(3)
    assert ring.all_reduce.seconds(4e9, 1) == pytest.approx(6)


def test_a_model_that_fits_no_gpu_is_refused_and_one_that_fits_sharded_only_is_sharded() -> None:
    large = gpt_with(12 * 10**9, vocabulary=50304, context=1024)
    with pytest.raises(ConfigError, match="use more GPUs"):
        make_plan(large, Machines.parse("1xA10"), batch_tokens=2**19)
    assert [one.parallel for one in make_plan(large, Machines.parse("16xA100"), batch_tokens=2**19).settings] == [
        "fsdp"
    ]


def test_the_command_prints_memory_time_cost_and_the_command_to_use(chainrule: Command) -> None:
    given = ("--parameters", "1.5B", "--tokens", "30B", "--gpus", "8xA100")
    shown = " ".join(chainrule("plan", *given).out.split())
    for part in ("memory per process", "train.accumulate=", "tokens/s", "days", "$", "use torchrun --nproc-per-node 8"):
        assert part in shown
    found = json.loads(chainrule("plan", *given, "--json").out)
    assert found["parameters"] == pytest.approx(1.5e9, rel=0.1)
    assert {"memory_bytes", "days", "dollars", "step_seconds"} <= found["settings"][0].keys()
