"""Training from Python: the same words as on the command line."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from chainrule.config import BUDGETS, RunConfig, apply_overrides, read_toml
from chainrule.errors import ConfigError, TrainingError
from chainrule.families import build
from chainrule.families import family as family_named
from chainrule.interface.base import CountModel, Trainable
from chainrule.interface.capabilities import is_right_to_left
from chainrule.material import Material, open_material
from chainrule.objectives import Noise
from chainrule.runs import Run, choose_device, load, run_of
from chainrule.training.checkpoint import RunFolder
from chainrule.training.counting import count
from chainrule.training.learner import build_learner
from chainrule.training.loop import Trainer, trainer_type
from chainrule.training.process import keep_freed_memory
from chainrule.training.progress import Recorder, Reporter
from chainrule.training.warm_start import WarmStart

__all__ = ["Run", "load", "train"]


def train(
    family: str,
    *,
    data: str | None = None,
    source: str | None = None,
    target: str | None = None,
    valid: str | None = None,
    valid_source: str | None = None,
    valid_target: str | None = None,
    valid_fraction: float | None = None,
    test_source: str | None = None,
    test_target: str | None = None,
    tokenizer: str | None = None,
    source_tokenizer: str | None = None,
    distil_from: str | Path | None = None,
    start_from: str | Path | None = None,
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

    A translation family learns from pairs: `data` that holds both sides, or a `source` and a `target` line by line.
    With `distil_from`, a run that translates, it learns from what that run makes of the training sources. With
    `start_from`, a run of the same task, it begins with that run's vocabulary, settings and weights.

    What has no word of its own is in `settings`, nested as in a config file: {"model": {"width": 256}, "train":
    {"batch_tokens": 8192}}, or in `overrides`: ["model.width=256"]. Later words win: the family's recipe, the config
    file, `settings`, the words above, `overrides`. When training has ended, the validation and test data are scored,
    unless `scored` is false.
    """
    reporter = reporter or Reporter()
    if not issubclass(family_named(family), CountModel | Trainable):
        raise TrainingError(f"a {family} is put together from trained runs; make it with: chainrule mix RUN1 RUN2 …")
    words = {
        "family": family,
        "tokenizer": tokenizer,
        "source_tokenizer": source_tokenizer,
        "start_from": None if start_from is None else str(start_from),
        "seed": seed,
        "threads": threads,
        "device": device,
        "data": {
            **_sides("", "train", data, source, target),
            **_sides("valid-", "valid", valid, valid_source, valid_target),
            **_sides("test-", "test", None, test_source, test_target),
            "valid_fraction": valid_fraction,
            "distil_from": None if distil_from is None else str(distil_from),
        },
        "train": {"minutes": minutes, "steps": steps, "epochs": epochs, "tokens": tokens},
    }
    values = combine(read_toml(Path(config)) if config is not None else {}, settings or {}, words, overrides)
    folder = RunFolder(Path(out) if out is not None else _new_folder(family))
    resumed = resume and folder.exists
    start = _start(values, folder, family, resumed)
    if resumed:
        wanted = continued(folder.config(), values)
    else:
        if "train" not in values.get("data", {}):
            raise ConfigError(_no_data(family))
        given = _over(start.settings(family), values) if start is not None else values
        wanted = RunConfig.parse(_over(recipe(family), given))
        if start is not None:
            start.require_vocabularies(wanted)
        folder.require_free()
    keep_freed_memory()
    if wanted.threads is not None:
        torch.set_num_threads(wanted.threads)
    place = choose_device(wanted.device)

    known = folder if resumed else start.folder if start is not None else None
    material = open_material(wanted, reporter, stored=known)
    for warning in material.warnings:
        reporter.note(warning)
    torch.manual_seed(wanted.seed)
    model = build(family, {**wanted.model, **material.vocabularies})
    complete = wanted.model_copy(
        update={
            "model": model.config.model_dump(mode="json", exclude_none=True),
            "data": material.settings(wanted.data),
        }
    )
    model = model.to(place)
    if is_right_to_left(model):
        material = material.reversed()
    outcome = None
    if isinstance(model, CountModel):
        material.create(folder, complete)
        count(model, material.corpus, reporter)
        folder.write_weights(model)
    elif isinstance(model, Trainable):
        trainer = _trainer(model, complete, material, folder, reporter, start)
        material.create(folder, complete)
        if resumed and (saved := folder.last_state()) is not None:
            trainer.restore(saved)
        outcome = trainer.run()
        folder.read_weights(model)
    run = run_of(folder, complete, model, outcome)
    if scored and (outcome is None or outcome.reason != "stopped"):
        material.score(run, reporter)
    folder.write_card(run.card())
    return run


def _no_data(family: str) -> str:
    if family_named(family).task in ("classification", "tagging", "reading"):
        return "no data was given; name a file of examples with --data: labelled lines, CoNLL-U, or SQuAD's JSON"
    if family_named(family).task == "translation":
        return "no data was given; name pairs with --source and --target, or a .tsv file or builtin:dates with --data"
    if family_named(family).task == "image":
        return "no data was given; name images with --data: idx, .npz, a folder of PNG or JPEG, or builtin:digits"
    return "no data was given; name a file, a folder, builtin:prose or hub:NAME with --data"


def _sides(prefix: str, split: str, both: str | None, source: str | None, target: str | None) -> dict[str, str | None]:
    """The words for the data of a split as settings: one text, or its translation with what it translates."""
    if (source is None) != (target is None):
        given, missing = ("source", "target") if target is None else ("target", "source")
        raise ConfigError(f"--{prefix}{given} came without --{prefix}{missing}; give both sides, line by line")
    if both is not None and target is not None:
        raise ConfigError(f"--{prefix}target and --{prefix.rstrip('-') or 'data'} both name the data; give one of them")
    return {split: both if target is None else target, f"{prefix.replace('-', '_')}source": source}


def combine(
    file: Mapping[str, Any], settings: Mapping[str, Any], words: Mapping[str, Any], overrides: Sequence[str]
) -> dict[str, Any]:
    """All that the user has said, in one tree; see `train` for which wins."""
    return apply_overrides(_over(_over(file, settings), _given(words)), overrides)


def recipe(name: str) -> dict[str, Any]:
    """What a family says where the user says nothing."""
    kind = family_named(name)
    return {"tokenizer": kind.tokenizer, "train": dict(kind.recipe)} if issubclass(kind, Trainable) else {}


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


def _start(values: Mapping[str, Any], folder: RunFolder, family: str, resumed: bool) -> WarmStart | None:
    """The run to begin with, as long as this one has not begun."""
    path = folder.config().start_from if resumed else values.get("start_from")
    if path is None or (resumed and folder.last_step() is not None):
        return None
    return WarmStart.open(path, family)


def _trainer(
    model: Trainable,
    config: RunConfig,
    material: Material,
    folder: RunFolder,
    reporter: Reporter,
    start: WarmStart | None,
) -> Trainer:
    settings = config.train
    unigrams = Noise(material.corpus.counts(model.vocabulary))
    model.init_output_bias(unigrams.unigram_logits)
    if start is not None:
        reporter.note(f"{start.copy_weights(model):.0%} of the weights are those of {start.folder.path}")
    lessons = material.lessons(model, config, reporter)
    return trainer_type(model)(
        model=model,
        learner=build_learner(model, settings, unigrams, lessons.learner),
        feed=lessons.feed,
        config=settings,
        folder=folder,
        recorder=Recorder(folder, tensorboard=settings.tensorboard),
        reporter=reporter,
        validate=lambda: material.validate(model, settings),
        measure=material.measure(model, config),
        bytes_per_token=material.bytes_per_token,
        unit=material.unit,
    )
