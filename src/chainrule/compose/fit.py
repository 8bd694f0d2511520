"""Fitting the gate of a mixture or an ensemble to held-out text. The parts stay as they are.

The parts read the text once. What the gate needs of each prediction is kept as `Evidence`, so that going over it many
times costs nothing of the parts: for a mixture the log-probability that each part gave to the token that came; for an
ensemble the whole distributions, or a shortlist of them where the vocabulary is large. Of a text whose evidence would
take more than `CACHE` numbers (128 MB), so many predictions as fit are chosen at random.

A constant gate has one number a part, which no text of some length overfits: L-BFGS takes all of it, and the problem
is convex for an ensemble and has one optimum for a mixture. A context gate begins as the best constant gate. Adam then
fits it to one half of the text, as long as the other half gains by it, and from the start again to both for so many
passes; if the other half never gains, the gate stays constant.

Shape letters: N predictions, P parts, F features.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from chainrule.compose.blend import Blend, Evidence
from chainrule.compose.gate import ContextGate, FixedGate
from chainrule.data.corpus import Corpus
from chainrule.errors import ConfigError, DataError
from chainrule.types import Batch, Sequences

CACHE = 1 << 25  # numbers of evidence
LOGITS_AT_ONCE = 1 << 22
TOKENS_AT_ONCE = 4096
STRIPES = 16  # contiguous pieces of the text that go to the two halves in turn
PASSES = 60  # at most, over the evidence
PATIENCE = 6  # passes without gain
ROWS = 1024  # predictions in a step
RATE = 0.005
AT_ONCE = 1 << 13  # predictions, where all of them are looked at


class Fit(NamedTuple):
    """How a gate was fitted; nats per token of the held-out text."""

    parts: list[float]  # each part alone
    weights: list[float]  # of each part by the fitted gate, on average
    before: float  # with the weights that the gate began with
    after: float  # with the fitted gate, on the very text that it was fitted to
    gain: float | None  # of a context gate over the best constant one, fitted to one half, on the other
    passes: int  # over the evidence, by a context gate
    predictions: int  # that the gate was fitted to


def fit_gate(model: Blend, corpus: Corpus, *, seed: int = 0, progress: Callable[[float], None] | None = None) -> Fit:
    """Fit the model's gate in place to a corpus that none of its parts was trained on."""
    if isinstance(model.gate, FixedGate):
        raise ConfigError("a fixed gate has nothing to fit; choose the gate learned or context")
    generator = torch.Generator(device=model.device).manual_seed(seed)
    evidence = gather(model, corpus, generator, progress)
    gate = model.gate
    with torch.no_grad():
        before = _nats(model, evidence)
        parts = (-evidence.own.double().mean(0)).tolist()
    gate.begin(_best_constant(model, evidence))
    gain, passes = None, 0
    if isinstance(gate, ContextGate):
        gain, passes = _fit_context(model, gate, evidence, seed)
    with torch.no_grad():
        weights = model.weights(gate.scores(evidence.features)).mean(0).tolist()
    return Fit(parts, weights, before, _nats(model, evidence), gain, passes, len(evidence.own))


# Evidence


@torch.no_grad()
def gather(
    model: Blend, corpus: Corpus, generator: torch.Generator, progress: Callable[[float], None] | None
) -> Evidence:
    """Let the parts read the corpus once, and keep what the gate needs of as many predictions as fit."""
    kept = _sample(model, len(corpus), generator)
    total = int(kept.sum())
    if total < 2 * STRIPES:
        raise DataError(f"{total} tokens are too few to fit a gate; give more validation data")
    whole: Evidence | None = None
    done = filled = 0
    for where, log_probs, features in _predictions(model, corpus):
        rows = kept[where].nonzero()[:, 0].to(model.device)
        targets = torch.from_numpy(corpus.tokens[where.numpy()].astype(np.int64)).to(model.device)
        chosen = [one[rows] for one in log_probs]
        piece = model.evidence(chosen, targets[rows], features[rows], generator)
        if whole is None:  # all of the room at once: to put pieces together in the end would take it twice
            whole = Evidence(*(tensor.new_empty(total, *tensor.shape[1:]) for tensor in piece))
        for room, tensor in zip(whole, piece, strict=True):
            room[filled : filled + len(tensor)] = tensor
        done, filled = done + len(where), filled + len(rows)
        if progress is not None:
            progress(done / len(corpus))
    assert whole is not None
    return whole


def _sample(model: Blend, length: int, generator: torch.Generator) -> Tensor:
    """(length,), true where the evidence of a prediction is kept."""
    most = CACHE // model.evidence_size
    kept = torch.ones(length, dtype=torch.bool)
    if length > most:
        chances = torch.rand(length, generator=generator, device=generator.device).cpu()
        kept = chances <= chances.kthvalue(most).values
    return kept


Predictions = tuple[Tensor, tuple[Tensor, ...], Tensor]
"""Where in the corpus (N,), the parts' log-probabilities (N, V) each, and the gate's features (N, F)."""


def _predictions(model: Blend, corpus: Corpus) -> Iterator[Predictions]:
    return _of_stream(model, corpus) if corpus.offsets is None else _of_documents(model, corpus, corpus.offsets)


def _of_stream(model: Blend, corpus: Corpus) -> Iterator[Predictions]:
    """One pass, states carried on; what is predicted after the last token of a chunk waits for the next."""
    chunk = max(16, min(TOKENS_AT_ONCE, LOGITS_AT_ONCE // model.vocabulary))
    waiting = model.begin(1)
    for first in range(0, len(corpus), chunk):
        ids = torch.from_numpy(corpus.tokens[first : first + chunk].astype(np.int64)).to(model.device)
        reading = model.read(ids[None], waiting.state)
        log_probs = tuple(
            torch.cat([early[0, -1:], late[0, :-1]])
            for early, late in zip(waiting.log_probs, reading.log_probs, strict=True)
        )
        features = torch.cat([waiting.features[0, -1:], reading.features[0, :-1]])
        waiting = reading
        yield torch.arange(first, first + len(ids)), log_probs, features


def _of_documents(model: Blend, corpus: Corpus, offsets: np.ndarray) -> Iterator[Predictions]:
    """Each document from its start, those of like length side by side."""
    lengths = np.diff(offsets)
    order = np.argsort(lengths, kind="stable")
    at_once = max(16, min(TOKENS_AT_ONCE, LOGITS_AT_ONCE // model.vocabulary))
    first = 0
    while first < len(order):
        last = first + 1
        while last < len(order) and (last + 1 - first) * lengths[order[last]] <= at_once:
            last += 1
        group = order[first:last]
        rows = Sequences.pack([corpus.tokens[offsets[one] : offsets[one + 1]].astype(np.int64) for one in group])
        batch = Batch(rows).to(model.device)
        log_probs, features = model.fit_statistics(batch)
        mask = batch.target.mask
        where = (torch.from_numpy(offsets[:-1][group])[:, None] + torch.arange(rows.ids.shape[1]))[rows.mask]
        yield where, tuple(one[mask] for one in log_probs), features[mask]
        first = last


# Fitting


def _best_constant(model: Blend, evidence: Evidence) -> Tensor:
    """The scores (P,) that do best everywhere."""
    parts = len(model.components)
    start = model.initial_scores(evidence.own.new_full((parts,), 1 / parts))
    scores = start.clone().requires_grad_()
    search = torch.optim.LBFGS([scores], max_iter=100, line_search_fn="strong_wolfe", tolerance_change=1e-7)

    def loss() -> Tensor:
        search.zero_grad()
        total = torch.zeros_like(start[0])
        for batch in _batches(evidence):
            value = model.losses(scores.expand_as(batch.own), batch).sum() / len(evidence.own)
            value.backward()  # type: ignore[no-untyped-call]
            total += value.detach()
        return total

    with torch.enable_grad():
        search.step(loss)  # type: ignore[no-untyped-call]
    return scores.detach() if bool(scores.isfinite().all()) else start


def _fit_context(model: Blend, gate: ContextGate, evidence: Evidence, seed: int) -> tuple[float, int]:
    """The nats gained on the half not seen, and the passes that this took; the gate is left fitted to both."""
    gate.standardise(evidence.features)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        gate.inward.reset_parameters()
    constant = copy.deepcopy(gate.state_dict())
    stripes = torch.arange(len(evidence.own)) * STRIPES // len(evidence.own)
    seen, other = (evidence.at((stripes % 2 == side).nonzero()[:, 0]) for side in (0, 1))
    best = begun = _nats(model, other)
    passes = 0
    for number, _ in enumerate(_passes(model, gate, seen, seed, PASSES), start=1):
        nats = _nats(model, other)
        if nats < best:
            best, passes = nats, number
        elif number - passes >= PATIENCE:
            break
    gate.load_state_dict(constant)
    for _ in _passes(model, gate, evidence, seed, passes):
        pass
    return begun - best, passes


def _passes(model: Blend, gate: ContextGate, evidence: Evidence, seed: int, number: int) -> Iterator[None]:
    """Go over the evidence in a new order each time."""
    random = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(gate.parameters(), lr=RATE)
    for _ in range(number):
        with torch.enable_grad():
            for rows in torch.split(torch.randperm(len(evidence.own), generator=random), ROWS):
                batch = evidence.at(rows)
                optimizer.zero_grad()
                model.losses(gate.scores(batch.features), batch).mean().backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        yield


@torch.no_grad()
def _nats(model: Blend, evidence: Evidence) -> float:
    """Nats per token, by the gate as it is."""
    total = 0.0
    for batch in _batches(evidence):
        total += float(model.losses(model.gate.scores(batch.features), batch).double().sum())
    return total / len(evidence.own)


def _batches(evidence: Evidence) -> Iterator[Evidence]:
    """All of it in order, a part at a time, so that what is computed from it takes little memory."""
    for rows in torch.split(torch.arange(len(evidence.own)), AT_ONCE):
        yield evidence.at(rows)
