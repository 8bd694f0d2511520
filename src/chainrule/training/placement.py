"""Where the weights of a model are in training, and how gradients are summed over processes.

Placement
├── Whole         one process
├── Replicated    every process has all weights; gradients are averaged while they are computed (DDP)
└── Sharded       every process has a part of weights, gradients and optimizer state, gathered by block (FSDP2)

Models have several methods that compute with their weights, and torch.distributed wraps `forward` only. So a loss is
computed by `placement(function, …)`, which calls the function within the `forward` of a module around the model.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeGuard, cast, final

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from chainrule.config import TrainConfig
from chainrule.errors import ConfigError
from chainrule.interface.base import Trainable
from chainrule.interface.capabilities import Shardable
from chainrule.training.distributed import ONE, Processes

if TYPE_CHECKING:  # slow to import, and needed for sharded training only
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor


class Placement(ABC):
    """The weights of one model."""

    def __init__(self, model: Trainable, processes: Processes = ONE) -> None:
        self.model, self.processes = model, processes

    @abstractmethod
    def __call__(self, compute: Callable[..., Tensor], *arguments: Any) -> Tensor:
        """Compute a loss whose backward pass gives the mean gradient of all processes."""

    @abstractmethod
    def accumulating(self, *, last: bool) -> contextlib.AbstractContextManager[object]:
        """A forward and backward pass whose gradient is kept in this process until the `last` one of a step."""

    def gathered(self) -> contextlib.AbstractContextManager[object]:
        """All weights are in every process within the block, and nothing is communicated: for validation."""
        return contextlib.nullcontext()


@final
class Whole(Placement):
    """One process."""

    def __call__(self, compute: Callable[..., Tensor], *arguments: Any) -> Tensor:
        return compute(*arguments)

    def accumulating(self, *, last: bool) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext()


class _Computation(nn.Module):
    """A model in which any function is the forward pass."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, compute: Callable[..., Tensor], *arguments: Any) -> Tensor:
        return compute(*arguments)


@final
class Replicated(Placement):
    """Distributed data parallelism."""

    def __init__(self, model: Trainable, processes: Processes) -> None:
        super().__init__(model, processes)
        # A loss need not use every parameter: branches of a mixture, for example, may have no rows in a process.
        self.module = DistributedDataParallel(
            _Computation(model), forward_sync_buffers=False, gradient_as_bucket_view=True, find_unused_parameters=True
        )

    def __call__(self, compute: Callable[..., Tensor], *arguments: Any) -> Tensor:
        loss: Tensor = self.module(compute, *arguments)
        return loss

    @contextlib.contextmanager
    def accumulating(self, *, last: bool) -> Iterator[None]:
        with contextlib.nullcontext() if last else self.module.no_sync():
            yield


@final
class Sharded(Placement):
    """Fully sharded data parallelism, over all processes or those of a mesh."""

    def __init__(self, model: Trainable, processes: Processes, mesh: DeviceMesh | None = None) -> None:
        from torch.distributed.fsdp import fully_shard

        super().__init__(model, processes)
        assert isinstance(model, Shardable)
        self.module = _Computation(model)
        modules = [*model.sharded_blocks(), self.module]
        for module in modules:
            fully_shard(module, mesh=mesh)
        self.shards = [cast("FSDPModule", module) for module in modules]
        if model.device.type == "cpu":  # which hides no communication, so that a block ahead would take memory only
            for shard in self.shards:
                shard.set_modules_to_backward_prefetch([shard])

    def __call__(self, compute: Callable[..., Tensor], *arguments: Any) -> Tensor:
        loss: Tensor = self.module(compute, *arguments)
        return loss

    @contextlib.contextmanager
    def accumulating(self, *, last: bool) -> Iterator[None]:
        for shard in self.shards:
            shard.set_requires_gradient_sync(last, recurse=False)
        yield

    @contextlib.contextmanager
    def gathered(self) -> Iterator[None]:
        for shard in self.shards:
            shard.set_reshard_after_forward(False, recurse=False)
            shard.unshard()
        try:
            yield
        finally:
            for shard in self.shards:
                shard.set_reshard_after_forward(shard is not self.shards[-1], recurse=False)
                shard.reshard()


def place(model: Trainable, settings: TrainConfig, processes: Processes) -> Placement:
    """Distribute a model over the processes."""
    if settings.checkpoint_activations:
        _checkpoint_activations(model)
    if processes.world == 1:
        return Whole(model)
    if settings.parallel == "ddp":
        return Replicated(model, processes)
    if not isinstance(model, Shardable):
        raise ConfigError(
            f"train.parallel=fsdp is for gpt, transformer, bert and t5, not for {type(model).__name__}; set "
            "train.parallel=ddp"
        )
    return Sharded(model, processes)


def _checkpoint_activations(model: Trainable) -> None:
    """Let blocks keep their inputs only; the backward pass computes them again, with the same dropout."""
    if not isinstance(model, Shardable):
        raise ConfigError(
            "train.checkpoint_activations is for gpt, transformer, bert and t5, not for "
            f"{type(model).__name__}; leave it out, or raise train.accumulate"
        )
    for block in model.sharded_blocks():
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)


def is_sharded(tensor: Tensor) -> TypeGuard[DTensor]:
    """Whether this process has a part of a tensor only."""
    sharding = sys.modules.get("torch.distributed.tensor")  # not imported: nothing is sharded
    return sharding is not None and isinstance(tensor, sharding.DTensor)


def full(tensor: Tensor) -> Tensor:
    """All of a tensor that may be sharded; every process has to call it."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def shard_like(tensor: Tensor, like: Tensor) -> Tensor:
    """The part of a tensor for this process, if `like`, of the same shape, is sharded."""
    if not is_sharded(like) or is_sharded(tensor) or tensor.shape != like.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
