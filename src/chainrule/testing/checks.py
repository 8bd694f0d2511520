"""`check_model`: the properties that every autoregressive family must have.

    from chainrule.testing import check_model
    check_model(lambda: MyModel(MyConfig(vocabulary=5, width=8)))

`build` must return the same model each time it is called. A check that cannot hold for a family is declared on
its class with the reason: `check_exceptions = {"name_of_the_check": "why"}`.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from chainrule.config import TrainConfig
from chainrule.data.batching import Feed, Lanes, Position, Windows
from chainrule.data.corpus import Corpus
from chainrule.decoding import GREEDY, Sampling, generate_tokens
from chainrule.decoding.block_size import FixedBlockSize
from chainrule.decoding.drafts import LookupDrafter, ModelDrafter
from chainrule.evaluation.verify import (
    CHECKS,
    Check,
    CheckFailed,
    CheckSubject,
    Finding,
    NotApplicable,
    SubjectT,
    examine,
    require,
    require_close,
)
from chainrule.interface.base import AutoregressiveModel, CountModel, DensityModel, NeuralModel, Trainable
from chainrule.interface.conditional import Conditional
from chainrule.objectives import Likelihood
from chainrule.training.checkpoint import RunFolder
from chainrule.training.learner import CarriedSegments, Learner, WholeSequences
from chainrule.training.loop import Trainer
from chainrule.training.progress import Recorder, Reporter
from chainrule.types import Batch, Sequences

Build = Callable[[], AutoregressiveModel]


def check_model(build: Build, *, only: str | None = None) -> list[Finding]:
    """Run every check in float64 and return what each found; raise the first failure that is no declared exception."""
    return run_checks(all_checks(build), lambda: CheckSubject(build()), build().check_exceptions, only)


def run_checks(
    checks: Mapping[str, Callable[[SubjectT], None]],
    fresh: Callable[[], SubjectT],
    exceptions: Mapping[str, str],
    only: str | None,
) -> list[Finding]:
    """Run each check, or only the one named, with a subject of its own."""
    unknown = set(exceptions) - set(checks)
    require(not unknown, f"check_exceptions names checks that do not exist: {sorted(unknown)}")
    found = []
    with float64():
        for name in checks if only is None else (only,):
            try:
                found.append(examine(name, checks[name], fresh(), exceptions))
            except CheckFailed as failure:
                raise CheckFailed(f"{name}: {failure}") from failure
    return found


def all_checks(build: Build) -> dict[str, Check]:
    """The checks of `chainrule verify`, and those that build or train a model of their own."""
    return {
        **CHECKS,
        "building_is_deterministic": lambda _: building_is_deterministic(build),
        "counting_in_chunks_equals_counting_at_once": lambda _: counting_in_chunks_equals_counting_at_once(build),
        "gradient_accumulation_equals_the_full_batch": lambda _: gradient_accumulation_equals_the_full_batch(build),
        "resuming_is_bit_exact": lambda _: resuming_is_bit_exact(build),
        "speculative_decoding_is_exact": speculative_decoding_is_exact,
    }


@contextlib.contextmanager
def float64() -> Iterator[None]:
    """Build models in double precision."""
    kept = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(kept)


@torch.no_grad()
def building_is_deterministic(build: Build) -> None:
    """Two calls of `build` return equal models, which the checks that build twice rely on."""
    first, second = CheckSubject(build()), CheckSubject(build())
    found = first.model.logits(first.batch)
    require(torch.equal(found, second.model.logits(first.batch)), "`build` returns another model the second time")


@torch.no_grad()
def counting_in_chunks_equals_counting_at_once(build: Build) -> None:
    """A text may be split anywhere before it is counted."""
    whole, halves = build(), build()
    if not isinstance(whole, CountModel) or not isinstance(halves, CountModel):
        raise NotApplicable("the model does not learn by counting")
    text = torch.randint(whole.vocabulary, (2, 31), generator=torch.Generator().manual_seed(3))
    whole.observe(Sequences.full(text))
    whole.estimate()
    state = None
    for piece in torch.split(text, [7, 1, 23], dim=1):
        state = halves.observe(Sequences.full(piece), state)
    halves.estimate()
    batch = CheckSubject(build()).batch
    require_close(halves.logits(batch), whole.logits(batch), "counting in chunks differs from counting at once")


def speculative_decoding_is_exact(subject: CheckSubject) -> None:
    """Speculative decoding writes what plain decoding writes, whether the guesses are all right or mostly wrong."""
    model = subject.model
    prompts = [subject.ids(count, seed=count).tolist() for count in (2, 0, 3, 1)]
    settings: dict[str, Any] = {"length": 10, "seeds": [5, 6, 7, 8], "source": subject.source(range(4))}
    for sampling in (GREEDY, Sampling(temperature=0.9)):
        plain = generate_tokens(model, prompts, sampling=sampling, **settings)
        for drafter in (ModelDrafter(model), LookupDrafter(shortest=1)):
            drafted = generate_tokens(
                model, prompts, sampling=sampling, draft=drafter, block_size=FixedBlockSize(4), **settings
            )
            for one, other in zip(plain, drafted, strict=True):
                require(one.ids == other.ids, f"a text drafted by {type(drafter).__name__} is another text")
                require(abs(one.log_prob - other.log_prob) < 1e-6, "a drafted text has another log-probability")


def gradient_accumulation_equals_the_full_batch(build: Build) -> None:
    """The gradient does not depend on the number of accumulation steps."""
    gradients = []
    for pieces in (1, 3):
        model = build()
        if not isinstance(model, NeuralModel):
            raise NotApplicable("the model is not trained by gradients")
        model.eval()  # dropout would draw other masks for other pieces
        length = min(8, model.context or 8)
        ids = torch.randint(model.vocabulary, (5, length), generator=torch.Generator().manual_seed(4))
        batch = Batch(Sequences(ids, torch.tensor([8, 3, 5, 1, 8]).clamp(max=length)), random_source(model, rows=5))
        WholeSequences(model, Likelihood(), pieces=pieces).gradient(batch)
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    require_close(gradients[1], gradients[0], "an accumulated gradient differs from that of the full batch")


def resuming_is_bit_exact(build: Build) -> None:
    """Six steps end in the same bits as three steps, a checkpoint, and three more."""
    resume_exactly(lambda folder, steps: _trainer(build(), folder, steps))


def resume_exactly(start: Callable[[RunFolder, int], Trainer]) -> None:
    """Compare six steps with three and three more, where `start` creates the trainer of N steps."""
    ends = []
    for stops in ((6,), (3, 6)):
        with tempfile.TemporaryDirectory() as name:
            for steps in stops:
                torch.manual_seed(0)
                trainer = start(RunFolder(Path(name)), steps)
                saved = trainer.folder.last_state()
                if saved is not None:
                    torch.manual_seed(99)  # the state of the global generator must not matter
                    trainer.restore(saved)
                trainer.run()
            ends.append(trainer.snapshot().tensors)
    for name in ends[0]:
        require(torch.equal(ends[0][name], ends[1][name]), f"{name} differs after a resumed run")


def _trainer(model: AutoregressiveModel, folder: RunFolder, steps: int) -> Trainer:
    """A run of a few steps on random tokens."""
    if not isinstance(model, NeuralModel):
        raise NotApplicable("the model is not trained by gradients")
    tokens = np.random.default_rng(0).integers(model.vocabulary, size=400)
    corpus = Corpus.of_tokens(tokens, vocabulary=model.vocabulary)
    learner: WholeSequences | CarriedSegments
    feed: Windows | Lanes | Sourced
    length = min(8, model.context or 8)
    if isinstance(model, Conditional):
        windows = Windows(corpus, rows=3, length=length, seed=0)
        learner, feed = WholeSequences(model, Likelihood()), Sourced(model, windows)
    elif model.context is None:
        learner, feed = (
            CarriedSegments(model, Likelihood()),
            Lanes(corpus, rows=3, length=8, seed=0, contiguous=len(corpus)),
        )
    else:
        learner, feed = WholeSequences(model, Likelihood()), Windows(corpus, rows=3, length=length, seed=0)
    return short_run(model, learner, feed, folder, steps)


def short_run(model: Trainable, learner: Learner, feed: Feed[Any], folder: RunFolder, steps: int) -> Trainer:
    """A trainer with every stateful part of the loop."""
    return Trainer(
        model=model,
        learner=learner,
        feed=feed,
        config=TrainConfig(steps=steps, schedule="constant", warmup=0, ema=0.9, validate_every=2),
        folder=folder,
        recorder=Recorder(folder, tensorboard=False),
        reporter=Reporter(),
        validate=lambda: 1.0,
        bytes_per_token=1.0,
    )


class Sourced(Feed[Batch]):
    """Windows with a random source for every row, determined by the position."""

    def __init__(self, model: DensityModel, windows: Windows) -> None:
        super().__init__(windows.seed, windows.rank, windows.world)
        self.model, self.windows = model, windows

    def batches_per_epoch(self, epoch: int) -> int:
        return self.windows.batches_per_epoch(epoch)

    def tokens(self, position: Position) -> int:
        return self.windows.tokens(position)

    def batch(self, position: Position) -> Batch:
        target = self.windows.batch(position).target
        return Batch(target, random_source(self.model, len(target.ids), seed=position.index))


def random_source(model: DensityModel, rows: int, seed: int = 0) -> Sequences | None:
    """Random sources of one token and more; None if the model has no source."""
    if not isinstance(model, Conditional):
        return None
    random = torch.Generator().manual_seed(seed)
    width = min(6, model.source_context or 6)
    ids = torch.randint(model.source_vocabulary, (rows, width), generator=random)
    return Sequences(ids, torch.linspace(1, width, rows).long())
