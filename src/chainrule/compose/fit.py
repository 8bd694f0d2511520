"""Fit the gate of a mixture or an ensemble to held-out text. The parts are not changed.

The parts read the text once. What the gate needs of each prediction is stored as `Evidence`, so that further passes do
not run the parts: for a mixture the log-probability of each target under each part; for an ensemble the whole
distributions, or a shortlist of them if the vocabulary is large. If the evidence of a text would exceed `MAX_EVIDENCE`
values (128 MB), a random sample of the predictions is used.

A constant gate has one parameter per part and does not overfit: L-BFGS uses all of the evidence, and the problem is
convex for an ensemble and has a single optimum for a mixture. A context gate starts as the best constant gate. Adam
fits it to one half of the text until the loss on the other half stops improving, and then from the start again to both
halves for the same number of passes; if the other half never improves, the gate stays constant.

Shape letters: N predictions, P parts, F features.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from chainrule.compose.blend import Blend, Evidence
from chainrule.compose.gate import ContextGate, FixedGate, Gate
from chainrule.compose.variants import Variants
from chainrule.data.corpus import Corpus
from chainrule.deadline import NO_DEADLINE, Deadline
from chainrule.errors import ConfigError, DataError

MAX_EVIDENCE = 1 << 25  # values
STRIPES = 16  # contiguous pieces of the text, assigned alternately to the two halves
MAX_PASSES = 60  # over the evidence
LBFGS_STEPS = 100
LBFGS_STEPS_AT_ONCE = 10  # if there is a deadline
CONSTANT_FRACTION = 0.2  # of the time before a deadline, for the constant gate
PATIENCE = 6  # passes without improvement
BATCH = 1024  # predictions per optimizer step
LEARNING_RATE = 0.005
EVALUATION_BATCH = 1 << 13  # predictions


class GateFit(NamedTuple):
    """The result of fitting a gate; losses in nats per token of the held-out text."""

    parts: list[float]  # of each part by itself
    weights: list[float]  # mean weight of each part under the fitted gate
    before: float  # with the initial weights
    after: float  # with the fitted gate, in-sample
    gain: float | None  # of a context gate over the best constant gate, out of sample: fitted to one half
    passes: int  # over the evidence, of a context gate
    predictions: int  # number of predictions in the evidence
    cut_short: bool = False  # whether the fit ended at a deadline


def fit_gate(
    model: Blend,
    corpus: Corpus,
    *,
    source: Corpus | None = None,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> GateFit:
    """Fit the gate of the model in place to a corpus on which none of its parts was trained.

    `source` has what each document of the corpus is predicted from, if the parts have a source.
    """
    _require_parameters(model)
    [evidence] = collect(Variants(model), corpus, source=source, seed=seed, progress=progress)
    return fit_to(model, evidence, seed=seed)


def fit_to(
    model: Blend,
    evidence: Evidence,
    *,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
    deadline: Deadline = NO_DEADLINE,
) -> GateFit:
    """Fit the gate of the model in place to evidence. At the deadline the fit ends where it is."""
    gate = _require_parameters(model)
    began = deadline.remaining
    with torch.no_grad():
        before = _nats(model, evidence)
        parts = (-evidence.own.double().mean(0)).tolist()
    gate.set_constant(_best_constant(model, evidence, deadline.share(CONSTANT_FRACTION)))
    gain, passes = None, 0
    if isinstance(gate, ContextGate):

        def report(fraction: float) -> None:
            if progress is not None:
                progress(max(fraction, 1 - deadline.remaining / began if math.isfinite(began) else 0.0))

        gain, passes = _fit_context(model, gate, evidence, seed, deadline, report)
    with torch.no_grad():
        weights = model.weights(gate.scores(evidence.features)).mean(0).tolist()
    after = _nats(model, evidence)
    return GateFit(parts, weights, before, after, gain, passes, len(evidence.own), deadline.passed)


def _require_parameters(model: Blend) -> Gate:
    if isinstance(model.gate, FixedGate):
        raise ConfigError("a fixed gate has no parameters to fit; choose the gate learned or context")
    return model.gate


# Evidence


@torch.no_grad()
def collect(
    variants: Variants,
    corpus: Corpus,
    *,
    source: Corpus | None = None,
    seed: int = 0,
    maximum: int | None = None,
    progress: Callable[[float], None] | None = None,
    deadline: Deadline = NO_DEADLINE,
) -> list[Evidence]:
    """Run the parts over the corpus once and keep the evidence of each blend, of as many predictions as memory allows.

    `maximum` is a lower limit on their number. At the deadline the predictions made by then are returned.
    """
    reader = variants.reader
    generator = torch.Generator(device=reader.device).manual_seed(seed)
    kept = _sample(len(corpus), min(maximum or len(corpus), MAX_EVIDENCE // reader.evidence_size), generator)
    total = int(kept.sum())
    if total < 2 * STRIPES:
        raise DataError(
            f"{total} validation tokens or labels are too few to fit a gate, which needs {2 * STRIPES}; name more data "
            "with --valid, or use --gate fixed"
        )
    found: list[Evidence] = []
    done = filled = 0
    for where, targets, inputs in variants.predictions(corpus, source):
        rows = kept[where].nonzero()[:, 0].to(reader.device)
        pieces = [
            blend.evidence([one[rows] for one in log_probs], targets[rows], features[rows], generator)
            for blend, (log_probs, features) in zip(variants.blends, inputs, strict=True)
        ]
        if not found:  # allocated once, since concatenating the pieces would take twice the memory
            found = [Evidence(*(one.new_empty(total, *one.shape[1:]) for one in piece)) for piece in pieces]
        for whole, piece in zip(found, pieces, strict=True):
            for buffer, tensor in zip(whole, piece, strict=True):
                buffer[filled : filled + len(tensor)] = tensor
        done, filled = done + len(where), filled + len(rows)
        if progress is not None:
            progress(done / len(corpus))
        if deadline.passed and filled >= 2 * STRIPES:
            break
    return [Evidence(*(tensor[:filled] for tensor in whole)) for whole in found]


def _sample(length: int, maximum: int, generator: torch.Generator) -> Tensor:
    """Mask (length,) of the predictions whose evidence is kept."""
    kept = torch.ones(length, dtype=torch.bool)
    if length > maximum:
        draws = torch.rand(length, generator=generator, device=generator.device).cpu()
        kept = draws <= draws.kthvalue(maximum).values
    return kept


# Fitting


def _best_constant(model: Blend, evidence: Evidence, deadline: Deadline) -> Tensor:
    """The constant scores (P,) with the lowest loss."""
    parts = len(model.components)
    start = model.initial_scores(evidence.own.new_full((parts,), 1 / parts))
    scores = start.clone().requires_grad_()
    steps = LBFGS_STEPS if deadline.end == math.inf else LBFGS_STEPS_AT_ONCE
    search = torch.optim.LBFGS([scores], max_iter=steps, line_search_fn="strong_wolfe", tolerance_change=1e-7)

    def loss() -> Tensor:
        search.zero_grad()
        total = torch.zeros_like(start[0])
        for batch in _batches(evidence):
            value = model.losses(scores.expand_as(batch.own), batch).sum() / len(evidence.own)
            value.backward()  # type: ignore[no-untyped-call]
            total += value.detach()
        return total

    with torch.enable_grad():
        for _ in range(LBFGS_STEPS // steps):
            search.step(loss)  # type: ignore[no-untyped-call]
            if deadline.passed:
                break
    return scores.detach() if bool(scores.isfinite().all()) else start


def _fit_context(
    model: Blend,
    gate: ContextGate,
    evidence: Evidence,
    seed: int,
    deadline: Deadline,
    progress: Callable[[float], None],
) -> tuple[float, int]:
    """The improvement in nats on the half not fitted to, and the number of passes; the gate is then fitted to both.

    A pass over both halves takes twice as long, so the first third of the time is for the one half.
    """
    gate.standardise(evidence.features)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        gate.input.reset_parameters()
    constant = copy.deepcopy(gate.state_dict())
    stripes = torch.arange(len(evidence.own)) * STRIPES // len(evidence.own)
    seen, other = (evidence.at((stripes % 2 == side).nonzero()[:, 0]) for side in (0, 1))
    best = initial = _nats(model, other)
    passes = 0
    half_time = deadline.share(1 / 3)
    for number, _ in enumerate(_passes(model, gate, seen, seed, MAX_PASSES), start=1):
        nats = _nats(model, other)
        progress(number / MAX_PASSES / 3)
        if nats < best:
            best, passes = nats, number
        elif number - passes >= PATIENCE:
            break
        if half_time.passed:
            break
    gate.load_state_dict(constant)
    for number, _ in enumerate(_passes(model, gate, evidence, seed, passes), start=1):
        progress((1 + 2 * number / passes) / 3)
        if deadline.passed:
            break
    return initial - best, passes


def _passes(model: Blend, gate: ContextGate, evidence: Evidence, seed: int, number: int) -> Iterator[None]:
    """Passes over the evidence, each in a new random order."""
    random = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(gate.parameters(), lr=LEARNING_RATE)
    for _ in range(number):
        with torch.enable_grad():
            for rows in torch.split(torch.randperm(len(evidence.own), generator=random), BATCH):
                batch = evidence.at(rows)
                optimizer.zero_grad()
                model.losses(gate.scores(batch.features), batch).mean().backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        yield


@torch.no_grad()
def _nats(model: Blend, evidence: Evidence) -> float:
    """Nats per token with the current gate."""
    total = 0.0
    for batch in _batches(evidence):
        total += float(model.losses(model.gate.scores(batch.features), batch).double().sum())
    return total / len(evidence.own)


def _batches(evidence: Evidence) -> Iterator[Evidence]:
    """The evidence in order, in batches that bound the memory of a pass."""
    for rows in torch.split(torch.arange(len(evidence.own)), EVALUATION_BATCH):
        yield evidence.at(rows)
