"""`check_parallel`: every property that a family must have that writes all tokens at once.

from chainrule.testing import check_parallel
check_parallel(lambda: MyModel(MyConfig(vocabulary=5, source_vocabulary=6, width=8)))
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from chainrule.data.batching import Windows
from chainrule.data.corpus import Corpus
from chainrule.evaluation.verify import Finding, require, require_close
from chainrule.evaluation.verify_parallel import PARALLEL_CHECKS, ParallelCheck, ParallelSubject
from chainrule.interface.conditional import ParallelModel
from chainrule.testing.checks import Sourced, resume_exactly, run_checks, short_run
from chainrule.training.checkpoint import RunFolder
from chainrule.training.learner import WholeTargets
from chainrule.training.loop import Trainer

Build = Callable[[], ParallelModel]


def check_parallel(build: Build, *, only: str | None = None) -> list[Finding]:
    """Run every check in float64 and return what each found; raise the first failure that is no declared exception."""
    return run_checks(all_parallel_checks(build), lambda: ParallelSubject(build()), build().check_exceptions, only)


def all_parallel_checks(build: Build) -> dict[str, ParallelCheck]:
    """The checks of a finished model, and those that train one of their own."""
    return {
        **PARALLEL_CHECKS,
        "building_twice_gives_one_model": lambda _: building_twice_gives_one_model(build),
        "accumulated_pieces_are_the_big_batch": lambda _: accumulated_pieces_are_the_big_batch(build),
        "every_weight_learns": lambda _: every_weight_learns(build),
        "a_resumed_run_is_the_uninterrupted_one": lambda _: resume_exactly(
            lambda folder, steps: _trainer(build(), folder, steps)
        ),
    }


@torch.no_grad()
def building_twice_gives_one_model(build: Build) -> None:
    """Otherwise the checks below would compare apples with pears."""
    first, second = ParallelSubject(build()), ParallelSubject(build())
    found = first.model.log_prob(first.batch)
    require(torch.equal(found, second.model.log_prob(first.batch)), "`build` gives another model the second time")


def accumulated_pieces_are_the_big_batch(build: Build) -> None:
    """The gradient does not depend on the number of pieces that a batch is computed in."""
    gradients = []
    for pieces in (1, 3):
        subject = ParallelSubject(build())  # in evaluation mode: dropout would draw other masks for other pieces
        torch.manual_seed(5)
        WholeTargets(subject.model, smoothing=0.1, pieces=pieces).gradient(subject.batch)
        gradients.append(torch.cat([p.grad.flatten() for p in subject.model.parameters() if p.grad is not None]))
    require_close(gradients[1], gradients[0], "a batch in pieces has another gradient than the batch at once")


def every_weight_learns(build: Build) -> None:
    """The objective has a gradient for every parameter, and a finite one."""
    subject = ParallelSubject(build())
    subject.model.train()
    torch.manual_seed(5)
    WholeTargets(subject.model).gradient(subject.batch)
    for name, parameter in subject.model.named_parameters():
        gradient = parameter.grad
        require(gradient is not None and bool(gradient.isfinite().all()), f"{name} has no finite gradient")
        require(gradient is not None and bool(gradient.any()), f"{name} has a gradient of zero")


def _trainer(model: ParallelModel, folder: RunFolder, steps: int) -> Trainer:
    """A run of a few steps on random pairs."""
    tokens = np.random.default_rng(0).integers(model.vocabulary, size=400)
    corpus = Corpus.of_tokens(tokens, vocabulary=model.vocabulary)
    feed = Sourced(model, Windows(corpus, rows=3, length=8, seed=0))
    return short_run(model, WholeTargets(model), feed, folder, steps)
