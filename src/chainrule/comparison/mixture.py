"""The mixture of the families of a comparison: static, and with neural caches, which adapt to the text they read.

Both mixtures have the same parts, which read each text once for both. All of it ends at a deadline: the caches and
gates are fitted for as long as the time allows that remains after the test data has been scored.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from chainrule.comparison.folder import TEST, ComparisonFolder, JobResult
from chainrule.compose.blend import Blend, Evidence
from chainrule.compose.ensemble import Ensemble
from chainrule.compose.fit import GateFit, collect, fit_to
from chainrule.compose.neural_cache import NeuralCache, supports_neural_cache
from chainrule.compose.variants import Variants
from chainrule.data.corpus import Corpus
from chainrule.deadline import NO_DEADLINE, Deadline
from chainrule.evaluation.likelihood import Surprisals, SurprisalTable
from chainrule.evaluation.protocol import protocol_for
from chainrule.files import write_whole
from chainrule.mixing import MixtureParts, add_neural_cache
from chainrule.tasks import load
from chainrule.tasks.base import parameters, require
from chainrule.tasks.sequences import SequenceRun
from chainrule.training.checkpoint import RunFolder
from chainrule.training.progress import Reporter

MIXTURE, CACHED_MIXTURE = "mixture", "mixture+cache"
MIN_WEIGHT = 0.02  # of a part in a fixed-weight mixture; parts with less are left out
CACHE_FRACTION = 0.2  # of the time of the mixtures, for fitting the neural caches
READING_FRACTION = 0.35  # of the time then left, for reading the validation data
MIN_FITTING = 0.2  # of the time then left, for fitting the gates
SCORING_MARGIN = 1.25  # of the time expected for scoring the test data
FITTED_PER_SECOND = 150_000  # predictions times vocabulary that a gate is fitted to in a second of a short time
MIN_PREDICTIONS = 4096
MIN_SCORED = 0.25  # of the test data that the families have scored, for the mixtures to be shown


def open_mixtures(folder: ComparisonFolder) -> dict[str, SequenceRun]:
    """The mixtures that have been fitted, by name."""
    names = [name for name in (MIXTURE, CACHED_MIXTURE) if folder.job_result(name) is not None]
    return {name: load(folder.run(name), SequenceRun, device="cpu") for name in names}  # type: ignore[type-abstract]


def fit_mixtures(
    folder: ComparisonFolder,
    names: Sequence[str],
    *,
    test: Corpus,
    gate_tokens: int | None,
    neural_cache: int | None,
    seed: int,
    deadline: Deadline = NO_DEADLINE,
    reporter: Reporter,
) -> dict[str, SequenceRun]:
    """The mixtures of these families: fitted on validation data, stored, and scored on the test data.

    What an interrupted comparison has finished is loaded: the fitted mixtures, and their scores. None are returned if
    time was up before enough of the test data was scored.
    """
    if folder.job_result(MIXTURE) is not None:
        return open_mixtures(folder)
    began = time.monotonic()
    parts = MixtureParts.open([folder.run(name) for name in names], device="cpu", valid=None, reporter=reporter)
    fitted = _fitted(folder, neural_cache, parts)
    if fitted is None:
        for name in (MIXTURE, CACHED_MIXTURE):
            shutil.rmtree(folder.run(name), ignore_errors=True)  # left by a comparison that was stopped here
        fitted = _fit(folder, parts, len(test), gate_tokens, neural_cache, seed, deadline, reporter)
    seconds = time.monotonic() - began
    scored = score_variants(_variants(fitted), test, deadline, reporter)
    if len(scored[0].nats) < min(MIN_PREDICTIONS, MIN_SCORED * len(test)):
        return {}
    jobs = [result for name in names if (result := folder.job_result(name)) is not None]
    for (name, run), found in zip(fitted.items(), scored, strict=True):
        folder.write_surprisals(name, TEST, found)
        result = JobResult(
            seconds=seconds + sum(job.seconds for job in jobs),
            tokens=sum(job.tokens for job in jobs),
            parameters=parameters(run.model),
            memory_bytes=max(job.memory_bytes for job in jobs),
        )
        write_whole(folder.job_file(name), result.model_dump_json(indent=2))
    return fitted


def useful_parts(nats: Mapping[str, npt.NDArray[np.float32]]) -> list[str]:
    """At least two models, the most useful first: those with a weight of MIN_WEIGHT or more in a mixture of all.

    The weights are the same for every token; they are fitted by EM.
    """
    names = list(nats)
    common = min(len(values) for values in nats.values())
    probabilities = np.exp(-np.stack([nats[name][:common].astype(np.float64) for name in names], axis=1))  # (N, P)
    weights = np.full(len(names), 1 / len(names))
    for _ in range(100):
        joint = weights * probabilities
        weights = (joint / joint.sum(1, keepdims=True)).mean(0)
    order = np.argsort(-weights, kind="stable")
    return [names[index] for place, index in enumerate(order) if weights[index] >= MIN_WEIGHT or place < 2]


def _fit(
    folder: ComparisonFolder,
    parts: MixtureParts,
    test_tokens: int,
    gate_tokens: int | None,
    neural_cache: int | None,
    seed: int,
    deadline: Deadline,
    reporter: Reporter,
) -> dict[str, SequenceRun]:
    """Fit the caches, then the gates to what the parts predict of the validation data; store both mixtures."""
    valid = parts.held_out.valid if gate_tokens is None else parts.held_out.valid.first(gate_tokens)
    own = [run.autoregressive for run in parts.runs]
    blends: dict[str, Blend] = {MIXTURE: Ensemble.of(own)}
    cacheable = [run for run in parts.runs if supports_neural_cache(run.autoregressive)]
    if neural_cache is not None and cacheable:
        until, cached = deadline.share(CACHE_FRACTION), {}
        for number, run in enumerate(cacheable):
            share = until.share(1 / (len(cacheable) - number))
            cached[run.path] = add_neural_cache(run, neural_cache, valid, reporter, share)
        blends[CACHED_MIXTURE] = Ensemble.of([cached.get(run.path, run.autoregressive) for run in parts.runs])
    variants = Variants(*blends.values())
    evidence, per_token = _evidence(variants, valid, seed, deadline, reporter)
    until = deadline.earlier(SCORING_MARGIN * per_token * test_tokens)
    until = max(until, deadline.share(MIN_FITTING), key=lambda one: one.end)  # then fewer tokens are scored
    found: dict[str, GateFit] = {}
    for number, ((name, blend), pieces) in enumerate(zip(blends.items(), evidence, strict=True)):
        reporter.begin(f"fitting the gate of the {name}")
        share = until.share(1 / (len(blends) - number))
        found[name] = fit_to(blend, pieces, seed=seed, progress=lambda done: reporter.update(done, {}), deadline=share)
        reporter.end()
    stored = {name: parts.store(blend, RunFolder(folder.run(name)), found[name]) for name, blend in blends.items()}
    return {name: require(run, SequenceRun) for name, run in stored.items()}  # type: ignore[type-abstract]


def _evidence(
    variants: Variants, valid: Corpus, seed: int, deadline: Deadline, reporter: Reporter
) -> tuple[list[Evidence], float]:
    """What the parts predict of the validation data, and the seconds that they take to read a token."""
    maximum = None
    if deadline.end < math.inf:
        fitting = deadline.remaining / 2 / len(variants.blends)
        maximum = max(MIN_PREDICTIONS, int(fitting * FITTED_PER_SECOND / min(256, variants.reader.vocabulary)))
    began, read = time.monotonic(), 1.0
    reporter.begin("reading the validation data")

    def progress(done: float) -> None:
        nonlocal read
        read = done * len(valid)
        reporter.update(done, {})

    until = deadline.share(READING_FRACTION)
    evidence = collect(variants, valid, seed=seed, maximum=maximum, progress=progress, deadline=until)
    reporter.end()
    return evidence, (time.monotonic() - began) / read


def _fitted(folder: ComparisonFolder, neural_cache: int | None, parts: MixtureParts) -> dict[str, SequenceRun] | None:
    """The mixtures that were fitted before the comparison was interrupted; None unless all were."""
    cached = neural_cache is not None and any(supports_neural_cache(run.autoregressive) for run in parts.runs)
    names = [MIXTURE, CACHED_MIXTURE] if cached else [MIXTURE]
    if not all((folder.run(name) / "card.md").is_file() for name in names):
        return None
    return {name: load(folder.run(name), SequenceRun, device="cpu") for name in names}  # type: ignore[type-abstract]


def _blend(run: SequenceRun) -> Blend:
    assert isinstance(run.model, Blend)
    return run.model


def _variants(fitted: Mapping[str, SequenceRun]) -> Variants:
    """The mixtures with one copy of the parts: that of the mixture with caches, if there is one."""
    static = _blend(fitted[MIXTURE])
    if CACHED_MIXTURE not in fitted:
        return Variants(static)
    cached = _blend(fitted[CACHED_MIXTURE])
    static.parts = torch.nn.ModuleList(
        part.model if isinstance(part, NeuralCache) else part for part in cached.components
    )
    return Variants(static, cached)


@torch.no_grad()
def score_variants(
    variants: Variants, corpus: Corpus, deadline: Deadline = NO_DEADLINE, reporter: Reporter | None = None
) -> list[Surprisals]:
    """Surprisals of a corpus under each blend. At the deadline, of the tokens that have been scored by then."""
    reporter = reporter or Reporter()
    reporter.begin("scoring the mixtures" if len(variants.blends) > 1 else "scoring the mixture")
    tables = [SurprisalTable(len(corpus)) for _ in variants.blends]
    for where, targets, inputs in variants.predictions(corpus):
        for blend, (log_probs, features), table in zip(variants.blends, inputs, tables, strict=True):
            table.add(where, targets, blend.combine(log_probs, blend.gate.scores(features)))
        reporter.update(tables[0].done, {})
        if deadline.passed and tables[0].complete:
            break
    reporter.end()
    return [table.surprisals(protocol_for(blend, corpus)) for blend, table in zip(variants.blends, tables, strict=True)]
