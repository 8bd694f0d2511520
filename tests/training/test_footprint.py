"""A model that does not fit into memory is refused before it is allocated."""

from __future__ import annotations

import re
import resource
from pathlib import Path

import pytest
import torch

from chainrule.config import TrainConfig
from chainrule.errors import ConfigError, RunError
from chainrule.families import build
from chainrule.memory import available_memory, require_room_for
from chainrule.training.footprint import footprint, require_memory
from chainrule.training.optim import build_optimizers
from tests.cli.test_bad_input import refused
from tests.conftest import Command

CPU = torch.device("cpu")


def test_a_model_too_wide_for_the_memory_is_refused_with_a_width_that_fits(
    chainrule: Command, text_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    outcome = chainrule("train", "gpt", "--data", text_file, "--out", out, "--set", "model.width=1000000")
    refused(outcome, "TB of memory", "is available")
    assert not out.exists()
    width = int(re.search(r"model.width=(\d+) fits", outcome.err)[1])  # type: ignore[index]
    settings = {"vocabulary": 30, "width": width // 2}  # what is available changes from moment to moment
    require_memory("gpt", settings, TrainConfig(), CPU)
    with pytest.raises(ConfigError):
        require_memory("gpt", {**settings, "width": width * 2}, TrainConfig(), CPU)


def test_a_batch_too_large_for_the_memory_is_refused_with_one_that_fits() -> None:
    with pytest.raises(ConfigError, match=r"set train.batch_tokens=(\d+) or less") as refusal:
        require_memory("recurrent", {"vocabulary": 30}, TrainConfig(batch_tokens=10**12), CPU)
    fits = int(re.search(r"batch_tokens=(\d+)", str(refusal.value))[1])  # type: ignore[index]
    require_memory("recurrent", {"vocabulary": 30}, TrainConfig(batch_tokens=fits // 2), CPU)


@pytest.mark.parametrize("name", ["gpt", "recurrent", "causal_conv"])
def test_the_estimate_counts_weights_gradients_and_the_state_of_the_optimizer(name: str) -> None:
    train = TrainConfig(optimizer="adamw")
    model = build(name, {"vocabulary": 30})
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizers = build_optimizers(model, train)  # type: ignore[arg-type]
    for optimizer in optimizers:
        optimizer.step()
    kept = [tensor for optimizer in optimizers for state in optimizer.state.values() for tensor in state.values()]
    used = sum(tensor.nbytes for tensor in (*model.parameters(), *model.parameters(), *model.buffers(), *kept))
    estimate = footprint(name, {"vocabulary": 30}, train)
    assert estimate is not None
    assert estimate.weights == pytest.approx(used, rel=0.001)


def test_a_limit_of_the_address_space_limits_the_available_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 10**8, before[1]))
    try:
        assert available_memory() <= 10**8
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_weights_that_do_not_fit_into_memory_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    with file.open("wb") as sparse:
        sparse.truncate(available_memory())  # takes no space on the disk
    with pytest.raises(RunError, match=r"takes about .* of memory, and .* is available"):
        require_room_for(file)
