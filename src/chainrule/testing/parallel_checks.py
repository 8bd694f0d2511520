"""`check_parallel`: the properties that every family must have that generates all tokens in parallel.

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
from chainrule.evaluation.verify_parallel import PARALLEL_CHECKS, ParallelCheck, ParallelCheckSubject
from chainrule.interface.conditional import ParallelModel
from chainrule.testing.checks import Sourced, resume_exactly, run_checks, short_run
from chainrule.training.checkpoint import RunFolder
from chainrule.training.learner import WholeTargets
from chainrule.training.loop import Trainer

Build = Callable[[], ParallelModel]


def check_parallel(build: Build, *, only: str | None = None) -> list[Finding]:
    """Run every check in float64 and return what each found; raise the first failure that is no declared exception."""
    return run_checks(all_parallel_checks(build), lambda: ParallelCheckSubject(build()), build().check_exceptions, only)


def all_parallel_checks(build: Build) -> dict[str, ParallelCheck]:
    """The checks of `chainrule verify`, and those that build or train a model of their own."""
    return {
        **PARALLEL_CHECKS,
        "building_is_deterministic": lambda _: building_is_deterministic(build),
        "gradient_accumulation_equals_the_full_batch": lambda _: gradient_accumulation_equals_the_full_batch(build),
        "every_parameter_has_a_gradient": lambda _: every_parameter_has_a_gradient(build),
        "resuming_is_bit_exact": lambda _: resume_exactly(lambda folder, steps: _trainer(build(), folder, steps)),
    }


@torch.no_grad()
def building_is_deterministic(build: Build) -> None:
    """Two calls of `build` return equal models, which the checks that build twice rely on."""
    first, second = ParallelCheckSubject(build()), ParallelCheckSubject(build())
    found = first.model.log_prob(first.batch)
    require(torch.equal(found, second.model.log_prob(first.batch)), "`build` returns another model the second time")


def gradient_accumulation_equals_the_full_batch(build: Build) -> None:
    """The gradient does not depend on the number of accumulation steps."""
    gradients = []
    for pieces in (1, 3):
        subject = ParallelCheckSubject(build())  # in evaluation mode: dropout would draw other masks for other pieces
        torch.manual_seed(5)
        WholeTargets(subject.model, smoothing=0.1, pieces=pieces).gradient(subject.batch)
        gradients.append(torch.cat([p.grad.flatten() for p in subject.model.parameters() if p.grad is not None]))
    require_close(gradients[1], gradients[0], "an accumulated gradient differs from that of the full batch")


def every_parameter_has_a_gradient(build: Build) -> None:
    """The gradient of the objective is finite and not zero for every parameter."""
    subject = ParallelCheckSubject(build())
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
