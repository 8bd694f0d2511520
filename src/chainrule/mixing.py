"""Combining trained runs into one, with a gate fitted to data that none of them was trained on."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import torch

from chainrule.compose.blend import Blend, GateName
from chainrule.compose.composite import part_settings
from chainrule.compose.conditional import ConditionalEnsemble, ConditionalMixture
from chainrule.compose.ensemble import Ensemble
from chainrule.compose.fit import GateFit, fit_gate
from chainrule.compose.gate import GATES, FixedGate
from chainrule.compose.mixture import Mixture
from chainrule.compose.neural_cache import NeuralCache, fit_neural_cache, supports_neural_cache
from chainrule.compose.reverse import reversed_corpus
from chainrule.config import DataConfig, RunConfig
from chainrule.data.corpus import Corpus
from chainrule.deadline import NO_DEADLINE, Deadline
from chainrule.errors import ConfigError, nearest
from chainrule.interface.base import AutoregressiveModel
from chainrule.interface.capabilities import is_right_to_left
from chainrule.interface.conditional import Conditional
from chainrule.tasks import load, run_of
from chainrule.tasks.base import HeldOut, require
from chainrule.tasks.mixable import MixableRun
from chainrule.training.checkpoint import RunFolder
from chainrule.training.process import keep_freed_memory
from chainrule.training.progress import Reporter, console_reporter

KINDS: dict[str, type[Blend]] = {"mixture": Mixture, "ensemble": Ensemble}
WITH_SOURCE: dict[str, type[Blend]] = {"mixture": ConditionalMixture, "ensemble": ConditionalEnsemble}
"""Of translation models and of classifiers."""


def mix(
    runs: Sequence[str | Path],
    *,
    out: str | Path,
    gate: GateName = "context",
    kind: Literal["mixture", "ensemble"] = "mixture",
    weights: Sequence[float] | None = None,
    neural_cache: int | None = None,
    valid: str | None = None,
    seed: int = 0,
    device: str = "auto",
    threads: int | None = None,
    scored: bool = True,
    progress: bool = True,
    reporter: Reporter | None = None,
) -> MixableRun:
    """Combine runs of one task that share a vocabulary into one run. The options are those of `chainrule mix`.

    The gate is fitted to the runs' own validation data, or to `valid` if it is given. The test data is scored once,
    with the fitted gate. Nothing is scored if `scored` is false. The new run contains the weights of its parts and does
    not need their folders.

    With `neural_cache`, every part that supports one gets a neural cache of that many tokens (`compose.neural_cache`);
    a single run may then be given.
    """
    reporter = reporter or (console_reporter() if progress else Reporter())
    for option, given, known in (("kind", kind, KINDS), ("gate", gate, GATES)):
        if given not in known:
            raise ConfigError(f"unknown {option} {given!r}; {nearest(given, known)}")
    if len(runs) < (2 if neural_cache is None else 1):
        raise ConfigError(f"mix needs at least two runs, got {len(runs)}; give more, or one with --neural-cache")
    folder = RunFolder(Path(out))
    folder.require_free()
    keep_freed_memory()
    if threads is not None:
        torch.set_num_threads(threads)
    parts = MixtureParts.open(runs, device=device, valid=valid, reporter=reporter)
    models = [run.autoregressive for run in parts.runs]
    with_source = isinstance(models[0], Conditional)
    if neural_cache is not None:
        if with_source:
            raise ConfigError("a neural cache is for runs of text; remove --neural-cache")
        models = [add_neural_cache(run, neural_cache, parts.held_out.valid, reporter) for run in parts.runs]
    model = (WITH_SOURCE if with_source else KINDS)[kind].of(models, gate=gate, weights=weights)
    if is_right_to_left(model):
        parts = replace(parts, held_out=parts.held_out.reversed())
    found = None if isinstance(model.gate, FixedGate) else _fit(model, parts.held_out, seed, reporter)
    run = parts.store(model, folder, found, seed=seed, device=device, threads=threads)
    if scored:
        splits = parts.held_out.splits
        run.score_splits(splits, lambda split, progress: run.score_held_out(splits[split], progress), reporter)
        parts.write_card(run, found)
    return run


@dataclass(frozen=True)
class MixtureParts:
    """The runs that are combined, and the held-out data for the gate."""

    runs: list[MixableRun]
    held_out: MixingData

    @classmethod
    def open(cls, paths: Sequence[str | Path], *, device: str, valid: str | None, reporter: Reporter) -> MixtureParts:
        """Load the runs, which must share a vocabulary and, unless `valid` is given, their validation data."""
        runs = [load(path, MixableRun, device=device) for path in paths]  # type: ignore[type-abstract]  # not instantiated
        _require_one_task(runs)
        _require_one_vocabulary(runs)
        return cls(runs, _held_out(runs, valid, reporter))

    def store(
        self,
        model: Blend,
        folder: RunFolder,
        found: GateFit | None,
        *,
        seed: int = 0,
        device: str = "cpu",
        threads: int | None = None,
    ) -> MixableRun:
        """Write a combination of the parts to a run folder of its own."""
        config = RunConfig(
            family=part_settings(model)["family"],
            tokenizer=self.runs[0].config.tokenizer,
            source_tokenizer=self.runs[0].config.source_tokenizer,
            seed=seed,
            threads=threads,
            device=device,
            data=self.held_out.config,
            model=model.config.model_dump(mode="json", exclude_none=True),
        )
        with folder.kept_if_trained():
            self.runs[0].create(folder, config)
            folder.write_weights(model)
        if found is not None:
            names = [str(run.path) for run in self.runs]
            folder.append(
                "metrics.jsonl",
                {"step": found.passes, "gate": model.config.gate, "runs": names, **found._asdict()},
            )
        run = require(run_of(folder, config, model), MixableRun)  # type: ignore[type-abstract]
        self.write_card(run, found)
        return run

    def write_card(self, run: MixableRun, found: GateFit | None) -> None:
        run.folder.write_card(_card(run, self.runs, found))
        run.describe()


def add_neural_cache(
    run: MixableRun, size: int, valid: Corpus, reporter: Reporter, deadline: Deadline = NO_DEADLINE
) -> AutoregressiveModel:
    """The run's model with a neural cache fitted to held-out text, or as it is if it does not support one."""
    part = run.autoregressive
    if not supports_neural_cache(part):
        return part
    model = NeuralCache.of(part, size=size)
    reporter.begin(f"fitting the neural cache of {run.path.name}")
    try:
        found = fit_neural_cache(model, valid, progress=lambda share: reporter.update(share, {}), deadline=deadline)
    finally:
        reporter.end()
    reporter.note(f"{run.path.name}: {found.before:.4f} nats/token, {found.after:.4f} with a neural cache")
    return model


def _fit(model: Blend, held_out: MixingData, seed: int, reporter: Reporter) -> GateFit:
    corpus, source, _ = held_out.splits["validation"]
    reporter.begin("fitting the gate")
    try:
        return fit_gate(model, corpus, source=source, seed=seed, progress=lambda share: reporter.update(share, {}))
    finally:
        reporter.end()


def _require_one_task(runs: Sequence[MixableRun]) -> None:
    for run in runs:
        if type(run) is not type(runs[0]):
            first = f"{str(runs[0].path)!r} {runs[0].does}"
            raise ConfigError(f"{first} and {str(run.path)!r} {run.does}; mix runs of one task")


def _require_one_vocabulary(runs: Sequence[MixableRun]) -> None:
    """A token id must mean the same to all runs."""
    first = runs[0]
    for run in runs:
        if run.vocabulary != first.vocabulary or run.model.vocabulary != first.model.vocabulary:
            raise ConfigError(
                f"{str(first.path)!r} ({first.config.tokenizer}, {first.model.vocabulary:,} tokens) and "
                f"{str(run.path)!r} ({run.config.tokenizer}, {run.model.vocabulary:,} tokens) have different "
                "vocabularies; train both on the same data with the same tokenizer"
            )


# The data


class MixingData(NamedTuple):
    """Validation data for the gate, test data for the result, and the settings that name them."""

    splits: dict[str, HeldOut]  # "validation", and "test" if there is one
    config: DataConfig

    @property
    def valid(self) -> Corpus:
        return self.splits["validation"].corpus

    def reversed(self) -> MixingData:
        """Targets from right to left; sources stay as they are."""
        splits = {name: one._replace(corpus=reversed_corpus(one.corpus)) for name, one in self.splits.items()}
        return self._replace(splits=splits)


def _held_out(runs: Sequence[MixableRun], valid: str | None, reporter: Reporter) -> MixingData:
    """The given validation data, or that of the runs if all have the same; test data if all have the same."""
    config = runs[0].config.data.model_copy(update={"distil_from": None, "distil_pairs": None})
    if valid is not None:
        config = config.model_copy(update={"valid_source": None})
        if valid in {run.config.data.test for run in runs}:
            raise ConfigError(f"{valid!r} is the test data of these runs; fit the gate to other data")
    else:
        _require_one_validation(runs)
        valid = config.valid
    trained = list(dict.fromkeys(run.config.data.train for run in runs))
    config = config.model_copy(update={"train": " + ".join(trained), "valid": valid})
    if len({_test(run.config.data) for run in runs}) > 1:
        reporter.note("the runs have different test data, so none is scored")
        config = config.model_copy(update={"test": None, "test_source": None, "test_fraction": None})
    if len(trained) > 1 or (valid is not None and config.test_fraction is None):
        named = ["validation"] if config.test is None else ["validation", "test"]
        return MixingData({split: runs[0].held_out(config, split) for split in named}, config)
    return MixingData(runs[0].held_out_splits(config, reporter.preparing), config)


def _require_one_validation(runs: Sequence[MixableRun]) -> None:
    """A gate fitted to what one of the parts was trained on would trust that part far too much."""
    for one, other in itertools.pairwise(runs):
        if _validation(one.config.data) != _validation(other.config.data):
            raise ConfigError(
                f"{str(one.path)!r} and {str(other.path)!r} have different validation data; name data that neither "
                "was trained on with --valid"
            )


def _validation(data: DataConfig) -> object:
    """All that decides which tokens the validation data has."""
    elsewhere = set() if data.valid is None else {"train", "source", "valid_fraction", "valid_from", "test_fraction"}
    return data.model_dump(exclude={"test", "test_source", "distil_from", "distil_pairs", *elsewhere})


def _test(data: DataConfig) -> object:
    """And the test data."""
    return data.test or (data.test_fraction and (data.test_fraction, data.train, data.valid_from == "spread"))


def _card(run: MixableRun, parts: Sequence[MixableRun], found: GateFit | None) -> str:
    """The card of the run, with a table of its parts."""
    lines = [run.card(), "## Parts", "", "| run | family | nats/token, validation | mean weight |", "|---|---|---|---|"]
    for number, part in enumerate(parts):
        nats, weight = ("", "") if found is None else (f"{found.parts[number]:.4f}", f"{found.weights[number]:.3f}")
        lines.append(f"| {part.path} | {part.config.family} | {nats} | {weight} |")
    if found is not None:
        note = (
            f"The gate was fitted to {found.predictions:,} predictions of the validation data, so the validation "
            f"metrics above are in-sample for it: {found.before:.4f} nats/token before, {found.after:.4f} after."
        )
        lines += ["", note]
        if found.gain is not None:
            lines.append(
                f"Fitted to one half of the data, the context gate saves {found.gain:.4f} nats/token on the other half."
            )
    return "\n".join(lines) + "\n"
