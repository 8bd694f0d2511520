"""The options of training, declared once: `chainrule train --NAME` and `chainrule.train(NAME=…)` are made from them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypedDict

from typing_extensions import Doc

from chainrule.errors import ConfigError


class TrainOptions(TypedDict, total=False):
    """Options of `train`; those that are not given are None."""

    data: Annotated[
        str | None,
        Doc(
            "Training data. Text: a file (also .gz .xz .zst .jsonl .parquet .csv .fasta), a folder, a glob, - for standard input, "
            "builtin:prose, builtin:python, or hub:NAME[:CONFIG[:SPLIT]]. Translation: pairs in a .tsv, .csv or .jsonl file, "
            "hub:NAME:CONFIG or builtin:dates. Images: idx, .npz, a folder of PNG or JPEG, or builtin:digits. Labels, "
            "tags and answers: .tsv, .csv or .jsonl, CoNLL-U or CoNLL-2003, or SQuAD's JSON."
        ),
    ]
    source: Annotated[str | None, Doc("Translation: the source text, one sentence per line.")]
    target: Annotated[str | None, Doc("Translation: the target text, line by line; instead of --data.")]
    out: Annotated[Path | None, Doc("Run folder to create; default runs/FAMILY-1, -2, …")]
    valid: Annotated[str | None, Doc("Validation data, in the same forms as --data.")]
    valid_source: Annotated[str | None, Doc("Translation: validation sources, with --valid-target.")]
    valid_target: Annotated[str | None, Doc("Translation: validation targets.")]
    test_source: Annotated[str | None, Doc("Translation: test sources, scored once after training.")]
    test_target: Annotated[str | None, Doc("Translation: test targets.")]
    valid_fraction: Annotated[
        float | None, Doc("Fraction of the data cut from its end for validation if --valid is not given; default 0.1.")
    ]
    tokenizer: Annotated[
        str | None,
        Doc(
            "chars, bytes, words, words:10000 (vocabulary size), words:min=5 (minimum count), bpe:8000, unigram:8000, "
            "sentencepiece:FILE or sentencepiece:8000, jieba, huggingface:FOLDER. Default: the family's own, mostly "
            "chars."
        ),
    ]
    source_tokenizer: Annotated[
        str | None, Doc("Translation: tokenizer of the source; by default both sides share one vocabulary.")
    ]
    distil_from: Annotated[
        str | None,
        Doc("Translation: train on the translations of this RUN instead of the targets (sequence-level distillation)."),
    ]
    start_from: Annotated[
        str | None,
        Doc(
            "Start with the vocabulary, settings and weights of this RUN: to fine-tune it, or for another family that "
            "shares modules with it."
        ),
    ]
    minutes: Annotated[float | None, Doc("Budget in minutes; the learning-rate schedule follows the clock.")]
    steps: Annotated[int | None, Doc("Budget in optimizer steps.")]
    epochs: Annotated[float | None, Doc("Budget in passes over the training data.")]
    tokens: Annotated[int | None, Doc("Budget in training tokens.")]
    seed: Annotated[int | None, Doc("Random seed; default 0.")]
    threads: Annotated[int | None, Doc("Number of CPU threads; default: all cores.")]
    device: Annotated[str | None, Doc("cpu, cuda, mps or auto.")]
    config: Annotated[Path | None, Doc("TOML file with settings, such as the config.toml of a run.")]
    resume: Annotated[bool, Doc("Continue the run in --out from its last checkpoint.")]


def train_settings(family: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options as a tree of settings like that of config.toml, without those that are None."""

    def text(name: str) -> str | None:
        return None if options.get(name) is None else str(options[name])

    tree = {
        "family": family,
        "tokenizer": options.get("tokenizer"),
        "source_tokenizer": options.get("source_tokenizer"),
        "start_from": text("start_from"),
        "seed": options.get("seed"),
        "threads": options.get("threads"),
        "device": options.get("device"),
        "data": {
            **_split(options, "train", "data", "source", "target"),
            **_split(options, "valid", "valid", "valid_source", "valid_target"),
            **_split(options, "test", None, "test_source", "test_target"),
            "valid_fraction": options.get("valid_fraction"),
            "distil_from": text("distil_from"),
        },
        "train": {name: options.get(name) for name in ("minutes", "steps", "epochs", "tokens")},
    }
    return _without_none(tree)


def _split(options: Mapping[str, Any], split: str, both: str | None, source: str, target: str) -> dict[str, Any]:
    """The data of a split: one data spec, or a target with its source."""
    given = {name: options.get(name) for name in (source, target)}
    spec = None if both is None else options.get(both)
    if (given[source] is None) != (given[target] is None):
        there, missing = (source, target) if given[target] is None else (target, source)
        raise ConfigError(f"{_flag(there)} is given without {_flag(missing)}; give both, line by line")
    if spec is not None and given[target] is not None:
        assert both is not None
        raise ConfigError(f"{_flag(target)} and {_flag(both)} are both given; remove one of them")
    return {split: spec if given[target] is None else given[target], source: given[source]}


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _without_none(tree: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: _without_none(value) if isinstance(value, Mapping) else value for name, value in tree.items()}
    return {name: value for name, value in kept.items() if value is not None and value != {}}
