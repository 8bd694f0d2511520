"""What a model learns from and is measured by: a text, pairs of texts. The training itself need not know which."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from chainrule.config import RunConfig
from chainrule.data.corpus import prepare
from chainrule.data.image_files import is_images
from chainrule.data.images import prepare_images
from chainrule.data.parallel import PairTokenizers, Rewrite, prepare_pairs
from chainrule.distillation import distilled
from chainrule.errors import ConfigError
from chainrule.families import family as family_named
from chainrule.interface.base import Model, OwnObjective
from chainrule.interface.capabilities import Cloze, Infills
from chainrule.interface.conditional import Conditional
from chainrule.material.base import HeldOut, Lessons, Material, score_splits
from chainrule.material.encoders import ClozeMaterial, EncoderMaterial
from chainrule.material.images import ImageMaterial
from chainrule.material.labels import LabelMaterial
from chainrule.material.pairs import PairMaterial
from chainrule.material.reading import ReadingMaterial
from chainrule.material.spans import SpanMaterial
from chainrule.material.tags import TagMaterial
from chainrule.material.text import OneText, TextMaterial, text_splits
from chainrule.material.words import WordMaterial
from chainrule.models.word2vec import Word2Vec
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


OF_EXAMPLES: dict[str, type[LabelMaterial | TagMaterial | ReadingMaterial]] = {
    "classification": LabelMaterial,
    "tagging": TagMaterial,
    "reading": ReadingMaterial,
}
"""What is said of a text, by the task of the model."""


def open_material(config: RunConfig, reporter: Reporter, *, stored: RunFolder | None = None) -> Material:
    """Prepare what the family learns from; a run that goes on has its vocabularies already."""
    family = family_named(config.family)
    if is_images(config.data.train):
        return ImageMaterial(prepare_images(config.data, reporter.preparing), config)
    if family.task == "image":
        raise ConfigError(
            f"{config.family} is a model of images, and {config.data.train!r} is none; give .npz, idx, a folder of PNG "
            "or JPEG, or builtin:digits"
        )
    if family.task in OF_EXAMPLES:
        _refuse_pairs(config)
        return OF_EXAMPLES[family.task].open(config, stored)
    if issubclass(family, Conditional) and not issubclass(family, Infills):
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


def _open_text(config: RunConfig, reporter: Reporter, stored: RunFolder | None) -> OneText:
    _refuse_pairs(config)
    prepared = prepare(
        config.data,
        config.tokenizer,
        tokenizer=None if stored is None else stored.tokenizer(),
        progress=reporter.preparing,
    )
    return _of_one_text(family_named(config.family))(prepared, config)


def _of_one_text(family: type[Model]) -> type[OneText]:
    """How a text is read: with gaps, with hidden words, as a whole, or each token after those before it."""
    if issubclass(family, Infills):
        return SpanMaterial
    if issubclass(family, Cloze):
        return ClozeMaterial
    if issubclass(family, Word2Vec):
        return WordMaterial
    return EncoderMaterial if issubclass(family, OwnObjective) else TextMaterial


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
