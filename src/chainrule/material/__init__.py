"""What a model learns from and is measured by: a text, pairs of texts. The training itself need not know which."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from chainrule.compose import kind
from chainrule.config import RunConfig
from chainrule.data.corpus import prepare
from chainrule.data.parallel import PairTokenizers, Rewrite, prepare_pairs
from chainrule.distillation import distilled
from chainrule.errors import ConfigError
from chainrule.material.base import HeldOut, Lessons, Material, score_splits
from chainrule.material.pairs import PairMaterial
from chainrule.material.text import TextMaterial, text_splits
from chainrule.models.conditional import Conditional
from chainrule.training.checkpoint import RunFolder
from chainrule.training.progress import Reporter

__all__ = [
    "HeldOut",
    "Lessons",
    "Material",
    "PairMaterial",
    "TextMaterial",
    "open_material",
    "score_splits",
    "text_splits",
]


def open_material(config: RunConfig, reporter: Reporter, *, stored: RunFolder | None = None) -> Material:
    """Prepare what the family learns from; a run that goes on has its vocabularies already."""
    if issubclass(kind(config.family), Conditional):
        return _open_pairs(config, reporter, stored)
    return _open_text(config, reporter, stored)


def _open_pairs(config: RunConfig, reporter: Reporter, stored: RunFolder | None) -> PairMaterial:
    known = None if stored is None else PairTokenizers(stored.source_tokenizer(), stored.tokenizer())
    pairs = prepare_pairs(
        config.data,
        config.tokenizer,
        config.source_tokenizer,
        tokenizers=known,
        rewrite=_rewrite(config, reporter),
        progress=reporter.preparing,
    )
    return PairMaterial(pairs)


def _open_text(config: RunConfig, reporter: Reporter, stored: RunFolder | None) -> TextMaterial:
    _refuse_pairs(config)
    prepared = prepare(
        config.data,
        config.tokenizer,
        tokenizer=None if stored is None else stored.tokenizer(),
        progress=reporter.preparing,
    )
    return TextMaterial(prepared, config.data)


def _rewrite(config: RunConfig, reporter: Reporter) -> Rewrite | None:
    """Where the run is to learn from another one."""
    teacher = config.data.distil_from
    if teacher is None:
        return None
    progress = partial(reporter.preparing, f"translating by {Path(teacher).name}")
    return lambda pairs: distilled(pairs, teacher, device=config.device, progress=progress)


def _refuse_pairs(config: RunConfig) -> None:
    given = {
        "data.source": config.data.source,
        "data.valid_source": config.data.valid_source,
        "data.test_source": config.data.test_source,
        "data.distil_from": config.data.distil_from,
        "source_tokenizer": config.source_tokenizer,
        "train.validate_bleu": config.train.validate_bleu,
    }
    for name, value in given.items():
        if value:
            raise ConfigError(
                f"{config.family} is a model of one text, and {name} is about pairs; leave it out, or train a "
                "translation family (chainrule models lists them)"
            )
