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
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from chainrule.compose.blend import Blend, Evidence
from chainrule.compose.gate import ContextGate, FixedGate
from chainrule.data.batching import by_length
from chainrule.data.corpus import Corpus
from chainrule.errors import ConfigError, DataError
from chainrule.types import Batch, Sequences

MAX_EVIDENCE = 1 << 25  # values
LOGITS_AT_ONCE = 1 << 22
TOKENS_AT_ONCE = 4096
STRIPES = 16  # contiguous pieces of the text, assigned alternately to the two halves
MAX_PASSES = 60  # over the evidence
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


def fit_gate(
    model: Blend, corpus: Corpus, *, seed: int = 0, progress: Callable[[float], None] | None = None
) -> GateFit:
    """Fit the gate of the model in place to a corpus on which none of its parts was trained."""
    if isinstance(model.gate, FixedGate):
        raise ConfigError("a fixed gate has no parameters to fit; choose the gate learned or context")
    generator = torch.Generator(device=model.device).manual_seed(seed)
    evidence = collect(model, corpus, generator, progress)
    gate = model.gate
    with torch.no_grad():
        before = _nats(model, evidence)
        parts = (-evidence.own.double().mean(0)).tolist()
    gate.set_constant(_best_constant(model, evidence))
    gain, passes = None, 0
    if isinstance(gate, ContextGate):
        gain, passes = _fit_context(model, gate, evidence, seed)
    with torch.no_grad():
        weights = model.weights(gate.scores(evidence.features)).mean(0).tolist()
    return GateFit(parts, weights, before, _nats(model, evidence), gain, passes, len(evidence.own))


# Evidence


@torch.no_grad()
def collect(
    model: Blend, corpus: Corpus, generator: torch.Generator, progress: Callable[[float], None] | None
) -> Evidence:
    """Run the parts over the corpus once and keep the evidence of as many predictions as memory allows."""
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
        if whole is None:  # allocated once, since concatenating the pieces would take twice the memory
            whole = Evidence(*(tensor.new_empty(total, *tensor.shape[1:]) for tensor in piece))
        for buffer, tensor in zip(whole, piece, strict=True):
            buffer[filled : filled + len(tensor)] = tensor
        done, filled = done + len(where), filled + len(rows)
        if progress is not None:
            progress(done / len(corpus))
    assert whole is not None
    return whole


def _sample(model: Blend, length: int, generator: torch.Generator) -> Tensor:
    """Mask (length,) of the predictions whose evidence is kept."""
    maximum = MAX_EVIDENCE // model.evidence_size
    kept = torch.ones(length, dtype=torch.bool)
    if length > maximum:
        draws = torch.rand(length, generator=generator, device=generator.device).cpu()
        kept = draws <= draws.kthvalue(maximum).values
    return kept


EvidencePiece = tuple[Tensor, tuple[Tensor, ...], Tensor]
"""Positions in the corpus (N,), log-probabilities (N, V) of each part, and features of the gate (N, F)."""


def _predictions(model: Blend, corpus: Corpus) -> Iterator[EvidencePiece]:
    return _of_stream(model, corpus) if corpus.offsets is None else _of_documents(model, corpus, corpus.offsets)


def _of_stream(model: Blend, corpus: Corpus) -> Iterator[EvidencePiece]:
    """One pass with carried state; the last prediction of a chunk is for the first token of the next."""
    chunk = max(16, min(TOKENS_AT_ONCE, LOGITS_AT_ONCE // model.vocabulary))
    pending = model.begin(1)
    for first in range(0, len(corpus), chunk):
        ids = torch.from_numpy(corpus.tokens[first : first + chunk].astype(np.int64)).to(model.device)
        predictions = model.read(ids[None], pending.state)
        log_probs = tuple(
            torch.cat([early[0, -1:], late[0, :-1]])
            for early, late in zip(pending.log_probs, predictions.log_probs, strict=True)
        )
        features = torch.cat([pending.features[0, -1:], predictions.features[0, :-1]])
        pending = predictions
        yield torch.arange(first, first + len(ids)), log_probs, features


def _of_documents(model: Blend, corpus: Corpus, offsets: np.ndarray) -> Iterator[EvidencePiece]:
    """Each document from BOS, in batches of documents of similar length."""
    lengths = np.diff(offsets).tolist()
    max_tokens = max(16, min(TOKENS_AT_ONCE, LOGITS_AT_ONCE // model.vocabulary))
    for group in by_length(lengths, len(lengths), max_tokens):
        rows = Sequences.pack([corpus.tokens[offsets[one] : offsets[one + 1]].astype(np.int64) for one in group])
        batch = Batch(rows).to(model.device)
        log_probs, features = model.part_log_probs(batch)
        mask = batch.target.mask
        where = (torch.from_numpy(offsets[:-1][group])[:, None] + torch.arange(rows.ids.shape[1]))[rows.mask]
        yield where, tuple(one[mask] for one in log_probs), features[mask]


# Fitting


def _best_constant(model: Blend, evidence: Evidence) -> Tensor:
    """The constant scores (P,) with the lowest loss."""
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
    """The improvement in nats on the half not fitted to, and the number of passes; the gate is then fitted to both."""
    gate.standardise(evidence.features)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        gate.input.reset_parameters()
    constant = copy.deepcopy(gate.state_dict())
    stripes = torch.arange(len(evidence.own)) * STRIPES // len(evidence.own)
    seen, other = (evidence.at((stripes % 2 == side).nonzero()[:, 0]) for side in (0, 1))
    best = initial = _nats(model, other)
    passes = 0
    for number, _ in enumerate(_passes(model, gate, seen, seed, MAX_PASSES), start=1):
        nats = _nats(model, other)
        if nats < best:
            best, passes = nats, number
        elif number - passes >= PATIENCE:
            break
    gate.load_state_dict(constant)
    for _ in _passes(model, gate, evidence, seed, passes):
        pass
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
