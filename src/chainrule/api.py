"""Training from Python: the same words as on the command line."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from chainrule.compose import build
from chainrule.compose import kind as kind_named
from chainrule.compose.composite import reads_backwards
from chainrule.compose.reverse import turned_corpus
from chainrule.config import BUDGETS, RunConfig, TrainConfig, apply_overrides, read_toml
from chainrule.data.batching import Documents, Feed, Lanes, Windows
from chainrule.data.corpus import Corpus, Prepared, prepare
from chainrule.errors import ConfigError, TrainingError
from chainrule.evaluation.likelihood import protocol_for, score
from chainrule.models.base import CountModel, NeuralModel
from chainrule.objectives import (
    Likelihood,
    Noise,
    NoiseContrastive,
    NoiseObjective,
    Objective,
    SampledSoftmax,
    SmoothedLikelihood,
    tabled,
)
from chainrule.runs import Run, choose_device, load
from chainrule.training.checkpoint import RunFolder
from chainrule.training.counting import count
from chainrule.training.learner import CarriedSegments, Learner, WholeSequences
from chainrule.training.loop import Trainer
from chainrule.training.memory import keep_freed_memory
from chainrule.training.progress import Recorder, Reporter

__all__ = ["Run", "load", "train"]

VALIDATION_PIECES = 16  # parts of a stream that are validated side by side while training


def train(
    family: str,
    *,
    data: str | None = None,
    valid: str | None = None,
    valid_fraction: float | None = None,
    tokenizer: str | None = None,
    out: str | Path | None = None,
    minutes: float | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    tokens: int | None = None,
    seed: int | None = None,
    threads: int | None = None,
    device: str | None = None,
    config: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
    resume: bool = False,
    scored: bool = True,
    reporter: Reporter | None = None,
) -> Run:
    """Train a model of a family on data of your own; the words are those of `chainrule train`.

    What has no word of its own is in `settings`, nested as in a config file: {"model": {"width": 256}, "train":
    {"batch_tokens": 8192}}, or in `overrides`: ["model.width=256"]. Later words win: the family's recipe, the config
    file, `settings`, the words above, `overrides`. When training has ended, the validation and test data are scored,
    unless `scored` is false.
    """
    reporter = reporter or Reporter()
    if not issubclass(kind_named(family), CountModel | NeuralModel):
        raise TrainingError(f"a {family} is put together from trained runs; make it with: chainrule mix RUN1 RUN2 …")
    words = {
        "family": family,
        "tokenizer": tokenizer,
        "seed": seed,
        "threads": threads,
        "device": device,
        "data": {"train": data, "valid": valid, "valid_fraction": valid_fraction},
        "train": {"minutes": minutes, "steps": steps, "epochs": epochs, "tokens": tokens},
    }
    values = combine(read_toml(Path(config)) if config is not None else {}, settings or {}, words, overrides)
    folder = RunFolder(Path(out) if out is not None else _new_folder(family))
    resumed = resume and folder.exists
    if resumed:
        wanted = continued(folder.config(), values)
    else:
        if "train" not in values.get("data", {}):
            raise ConfigError("no data was given; name a file, a folder, builtin:prose or hub:NAME with --data")
        wanted = RunConfig.parse(_over(recipe(family), values))
        folder.require_free()
    keep_freed_memory()
    if wanted.threads is not None:
        torch.set_num_threads(wanted.threads)
    place = choose_device(wanted.device)

    prepared = prepare(
        wanted.data,
        wanted.tokenizer,
        tokenizer=folder.tokenizer() if resumed else None,
        progress=reporter.preparing,
    )
    for warning in prepared.warnings:
        reporter.note(warning)
    torch.manual_seed(wanted.seed)
    model = build(family, {**wanted.model, "vocabulary": prepared.tokenizer.vocabulary})
    complete = wanted.model_copy(
        update={
            "model": model.config.model_dump(mode="json", exclude_none=True),
            "data": wanted.data.model_copy(update={"unit": prepared.train.unit}),
        }
    )
    model = model.to(place)
    if reads_backwards(model):
        prepared = _turned(prepared)
    outcome = None
    if isinstance(model, CountModel):
        folder.lay_out(complete, prepared.tokenizer)
        count(model, prepared.train, reporter)
        folder.write_weights(model)
    elif isinstance(model, NeuralModel):
        trainer = _trainer(model, complete, prepared, folder, reporter)
        folder.lay_out(complete, prepared.tokenizer)
        if resumed and (saved := folder.last_state()) is not None:
            trainer.restore(saved)
        outcome = trainer.run()
        folder.read_weights(model)
    run = Run(folder, complete, prepared.tokenizer, model.eval(), outcome)
    if scored and (outcome is None or outcome.reason != "stopped"):
        score_splits(run, prepared.valid, prepared.test, reporter)
    folder.write_card(run.card())
    return run


def combine(
    file: Mapping[str, Any], settings: Mapping[str, Any], words: Mapping[str, Any], overrides: Sequence[str]
) -> dict[str, Any]:
    """All that the user has said, in one tree; see `train` for which wins."""
    return apply_overrides(_over(_over(file, settings), _given(words)), overrides)


def recipe(name: str) -> dict[str, Any]:
    """What a family says where the user says nothing."""
    kind = kind_named(name)
    return {"train": dict(kind.recipe)} if issubclass(kind, NeuralModel) else {}


def _over(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    """Both trees; where they meet, `high` wins. A new budget replaces the old one, whatever its kind."""
    result = dict(low)
    if any(name in high for name in BUDGETS):
        result = {name: value for name, value in result.items() if name not in BUDGETS}
    for name, value in high.items():
        both = isinstance(value, Mapping) and isinstance(result.get(name), Mapping)
        result[name] = _over(result[name], value) if both else value
    return result


def _given(words: Mapping[str, Any]) -> dict[str, Any]:
    """Without what is None."""
    kept = {name: _given(value) if isinstance(value, Mapping) else value for name, value in words.items()}
    return {name: value for name, value in kept.items() if value is not None and value != {}}


def continued(stored: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """The stored settings, which need not be said again.

    Only the budget, the device and the threads may change from one sitting to the next.
    """
    merged = RunConfig.parse(_over(stored.model_dump(exclude_none=True), values))
    free: dict[str, Any] = {"train": {*BUDGETS, "save_every", "log_every", "patience"}, "device": True, "threads": True}
    before, after = (config.model_dump(exclude=free) for config in (stored, merged))
    if before != after:
        path, old, new = _first_difference(before, after)
        raise ConfigError(
            f"a resumed run keeps its settings, but {path!r} was {old!r} and is now {new!r}; "
            "leave it out, or train a new run in another folder"
        )
    return merged


def _first_difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, Any, Any]:
    for name in {**before, **after}:
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            path, old, new = _first_difference(old, new)
            name = f"{name}.{path}"
        return name, old, new
    raise AssertionError("the two are equal")


def _new_folder(name: str) -> Path:
    return next(path for number in itertools.count(1) if not (path := Path("runs") / f"{name}-{number}").exists())


def _trainer(
    model: NeuralModel, config: RunConfig, prepared: Prepared, folder: RunFolder, reporter: Reporter
) -> Trainer:
    """Choose how the data is fed: by documents, by windows where a model has a context, else by lanes."""
    settings = config.train
    corpus = prepared.train
    unigrams = Noise(corpus.counts(model.vocabulary))
    model.expect(unigrams.levels)
    objective = _objective(settings, unigrams, model)
    length = settings.segment or model.segment
    rows = max(1, settings.batch_tokens // length)
    feed: Feed[Any]
    learner: type[Learner] = WholeSequences
    if corpus.unit == "documents":
        longest = model.context if model.context is not None else settings.segment
        feed = Documents(corpus, batch_tokens=settings.batch_tokens, longest=longest, seed=config.seed)
    elif model.context is not None:
        if length > model.context:
            raise ConfigError(
                f"train.segment {length} is longer than model.context {model.context}; lower the one or raise the other"
            )
        feed = Windows(corpus, rows=rows, length=length, seed=config.seed)
    else:
        feed, learner = Lanes(corpus, rows=rows, length=length, seed=config.seed), CarriedSegments
    return Trainer(
        model=model,
        learner=learner(
            model, objective, pieces=settings.accumulate, half=_half(settings, model), compiled=settings.compile
        ),
        feed=feed,
        config=settings,
        folder=folder,
        recorder=Recorder(folder, tensorboard=settings.tensorboard),
        reporter=reporter,
        validate=lambda: _validate(model, prepared.valid, settings),
        bytes_per_token=corpus.bytes_per_token,
    )


NOISE_OBJECTIVES: dict[str, type[NoiseObjective]] = {"nce": NoiseContrastive, "sampled": SampledSoftmax}


def _objective(settings: TrainConfig, unigrams: Noise, model: NeuralModel) -> Objective:
    if settings.objective in NOISE_OBJECTIVES:
        tabled(model)  # refused before anything is written
        return NOISE_OBJECTIVES[settings.objective](unigrams, settings.noise)
    return SmoothedLikelihood(settings.label_smoothing) if settings.label_smoothing else Likelihood()


def _half(settings: TrainConfig, model: NeuralModel) -> bool:
    """bfloat16 where it is asked for, or where the device has hardware for it."""
    if settings.precision == "auto":
        return model.device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return settings.precision == "bfloat16"


def _validate(model: NeuralModel, corpus: Corpus, settings: TrainConfig) -> float:
    """A quick look while training: a part of the validation data, read in parallel, windows without overlap."""
    protocol = protocol_for(
        model, corpus, stride=model.context, pieces=VALIDATION_PIECES, tokens=settings.validate_tokens
    )
    return score(model, corpus, protocol).nats_per_token


def _turned(prepared: Prepared) -> Prepared:
    return prepared._replace(
        train=turned_corpus(prepared.train),
        valid=turned_corpus(prepared.valid),
        test=None if prepared.test is None else turned_corpus(prepared.test),
    )


def score_splits(run: Run, valid: Corpus, test: Corpus | None, reporter: Reporter) -> None:
    """The numbers that the card shows: whole splits, by the usual protocol."""
    for split, corpus in (("validation", valid), ("test", test)):
        if corpus is None:
            continue
        reporter.begin(f"scoring the {split} data")
        try:
            result = score(run.model, corpus, progress=lambda share: reporter.update(share, {}))
        finally:
            reporter.end()
        run.keep_score(result, corpus, run.config.data.named(split), split=split)
