"""Started by torchrun from `test_distributed.py`: gradients of several processes against those of one.

Arguments: the file for the largest difference of every case, and the families, by default all.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from chainrule.config import TrainConfig
from chainrule.data.batching import Segment
from chainrule.families import family
from chainrule.interface.base import CountModel, Model, NeuralModel, OwnObjective, SparseUpdates
from chainrule.interface.capabilities import Shardable
from chainrule.objectives import Likelihood, Noise, NoiseContrastive, Objective, SampledSoftmax, SmoothedLikelihood
from chainrule.testing.checks import random_source
from chainrule.testing.tiny import (
    EMBEDDERS,
    PARALLEL,
    TINY,
    VOCABULARY,
    embedder_variants,
    parallel_variants,
    tiny_embedder,
    tiny_model,
    tiny_parallel,
    variants,
)
from chainrule.training.distributed import ONE, Processes, joined
from chainrule.training.learner import CarriedSegments, Learner, WholeSequences, WholeTargets
from chainrule.training.placement import Placement, Whole, full, place
from chainrule.types import Batch, Sequences

CPU = torch.device("cpu")
ROWS = 5

Build = Callable[[], Model]


def forms() -> dict[str, Build]:
    """A tiny model of every gradient family, and of every variant of those that may be sharded."""
    found: dict[str, Build] = {}
    tables = ((variants(), TINY, tiny_model), (parallel_variants(), PARALLEL, tiny_parallel),
              (embedder_variants(), {**TINY, **EMBEDDERS}, tiny_embedder))  # fmt: skip
    for pairs, table, build in tables:
        for name, variant in pairs:
            kind = family(name)
            if name not in table or issubclass(kind, CountModel | SparseUpdates):
                continue
            if issubclass(kind, Shardable) or variant == next(iter(table[name])):
                found[f"{name} {variant}"] = lambda build=build, name=name, variant=variant: build(name, variant)
    return found


def whole_batch(model: Model, rows: int) -> Batch:
    """Rows of different lengths; a process gets those of its rank."""
    length = min(8, model.context or 8)
    ids = torch.randint(VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(4))
    lengths = torch.tensor([8, 3, 5, 2, 8])[:rows].clamp(max=length)
    return Batch(Sequences(ids, lengths), random_source(model, rows))


def own_rows(batch: Batch, processes: Processes) -> Batch:
    def part(sequences: Sequences) -> Sequences:
        begin = processes.rank if processes.rank < len(sequences.ids) else 0
        return Sequences(sequences.ids[begin :: processes.world], sequences.lengths[begin :: processes.world])

    return Batch(part(batch.target), None if batch.source is None else part(batch.source))


def gradient(learner: Learner, placement: Placement, rows: int) -> tuple[float, dict[str, Tensor]]:
    """The loss and the gradient of a batch of `rows` rows."""
    processes, model = placement.processes, placement.model
    torch.manual_seed(5)
    if isinstance(learner, CarriedSegments):
        ids = torch.randint(VOCABULARY, (rows, 9), generator=torch.Generator().manual_seed(4))
        ids = ids[processes.rank :: processes.world]
        for fresh in (True, False):  # the second segment continues the state of the first
            model.zero_grad()
            loss = learner.gradient(Segment(ids[:, :-1], ids[:, 1:], fresh=fresh))
    else:
        batch = own_rows(whole_batch(model, rows), processes)
        loss = learner.gradient(batch, idle=processes.rank >= rows)
    return loss.total, {name: full(p.grad).clone() for name, p in model.named_parameters() if p.grad is not None}


def learners(model: Model) -> dict[str, Callable[..., Learner]]:
    if isinstance(model, OwnObjective):
        return {"own objective": lambda **how: WholeTargets(model, smoothing=0.1, **how)}
    assert isinstance(model, NeuralModel)
    noise = Noise(range(1, model.vocabulary + 1))
    objectives: dict[str, Objective] = {"likelihood": Likelihood()}
    if type(model).__name__ in ("Recurrent", "GPT"):
        objectives |= {
            "smoothed": SmoothedLikelihood(0.1),
            "nce": NoiseContrastive(noise, 6),
            "sampled": SampledSoftmax(noise, 6),
        }
    found: dict[str, Callable[..., Learner]] = {
        name: lambda one=one, **how: WholeSequences(model, one, **how) for name, one in objectives.items()
    }
    if type(model).__name__ == "Recurrent":
        found["carried"] = lambda **how: CarriedSegments(model, Likelihood(), **how)
    return found


def main(out: Path, families: list[str]) -> None:
    torch.set_default_dtype(torch.float64)
    worst: dict[str, float] = {}
    with joined(CPU) as processes:
        for label, build in forms().items():
            if families and label.split()[0] not in families:
                continue
            sharded = issubclass(type(build()), Shardable)
            for parallel in ("ddp", "fsdp") if sharded else ("ddp",):
                for kind in learners(build()):
                    for rows, pieces in ((ROWS, 1), (ROWS, 2), (2, 1)):
                        if rows < processes.world and kind == "carried":
                            continue
                        found = []
                        for group in (ONE, processes):
                            model = build()
                            settings = TrainConfig(parallel=parallel)  # type: ignore[arg-type]
                            placement = Whole(model) if group is ONE else place(model, settings, group)
                            learner = learners(model)[kind](pieces=pieces, placement=placement)
                            found.append(gradient(learner, placement, rows))
                        (loss, expected), (other, computed) = found
                        assert expected.keys() <= computed.keys(), (label, kind)
                        differences = [abs(loss - other)]
                        for name, value in computed.items():
                            reference = expected.get(name, torch.zeros_like(value))
                            differences.append(float((value - reference).abs().max()))
                        worst[f"{label}, {parallel}, {kind}, {rows} rows, {pieces} pieces"] = max(differences)
        if processes.first:
            out.write_text(json.dumps(worst))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
