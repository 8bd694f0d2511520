"""Parallel text as tokens: two corpora of documents; the i-th target is the translation of the i-th source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from chainrule.config import DataConfig
from chainrule.data.cleaning import CleaningReport, CleaningRules, CleanPairs, cleaned
from chainrule.data.corpus import Corpus, Report, cut_off, shared_origins, tokenizer_of
from chainrule.data.drift import drift_warnings
from chainrule.data.pairs import open_pairs
from chainrule.data.source import Pair, PairSource, Split, normalisation_of
from chainrule.data.splits import TRAINING, Part
from chainrule.data.token_files import Tokens
from chainrule.errors import DataError
from chainrule.tokenizers import Tokenizer
from chainrule.types import Progress

SHOWN = 200  # validation pairs that are also kept as text, for BLEU during training


class PairTokenizers(NamedTuple):
    """The tokenizers of both sides; the same one twice if they share a vocabulary."""

    source: Tokenizer
    target: Tokenizer


@dataclass(frozen=True)
class PairedCorpus:
    """Sources and their translations. Every document of both sides ends with EOS."""

    source: Corpus
    target: Corpus

    def __post_init__(self) -> None:
        sources, targets = self.source.offsets, self.target.offsets
        if sources is None or targets is None:
            raise DataError("pairs need documents on both sides, got a stream; set data.unit=documents")
        if len(sources) != len(targets):
            raise DataError(f"{len(sources) - 1:,} sources cannot be paired with {len(targets) - 1:,} translations")

    @property
    def pairs(self) -> int:
        assert self.source.offsets is not None
        return len(self.source.offsets) - 1

    def ids(self) -> Iterator[tuple[Tokens, Tokens]]:
        """Yield source and target of every pair, both ending with EOS."""
        yield from zip(self.source.documents(), self.target.documents(), strict=True)

    @classmethod
    def build(
        cls,
        pairs: CleanPairs,
        tokenizers: PairTokenizers,
        part: Part | None = None,
        *,
        cache: Path | None = None,
        progress: Progress | None = None,
    ) -> PairedCorpus:
        """Encode both sides, or the same part of both, unless cached."""
        return cls(
            Corpus.build(pairs.source, tokenizers.source, part, cache=cache, progress=progress),
            Corpus.build(pairs.target, tokenizers.target, part, cache=cache, progress=progress),
        )

    @classmethod
    def of_pair(cls, source: str, target: str, tokenizers: PairTokenizers) -> PairedCorpus:
        """Encode a single pair in memory."""
        return cls(
            Corpus.of_text(source, tokenizers.source, unit="documents"),
            Corpus.of_text(target, tokenizers.target, unit="documents"),
        )


Rewrite = Callable[[CleanPairs], CleanPairs]
"""Replaces the targets of pairs."""


class PreparedPairs(NamedTuple):
    """The encoded splits for training and evaluation of a translation model."""

    tokenizers: PairTokenizers
    train: PairedCorpus
    valid: PairedCorpus
    test: PairedCorpus | None
    monitored: PairedCorpus  # validation pairs during training: `valid`, rewritten if the training pairs are
    shown: list[Pair]  # the first validation pairs as text, for BLEU during training
    languages: Pair  # codes; empty if not known
    names: dict[str, str]  # names of the validation and test data in reports
    reports: dict[str, CleaningReport]  # by split
    warnings: tuple[str, ...]  # one line each


def prepare_pairs(
    config: DataConfig,
    tokenizer_spec: str,
    source_tokenizer_spec: str | None = None,
    *,
    tokenizers: PairTokenizers | None = None,
    rewrite: Rewrite | None = None,
    cache: Path | None = None,
    progress: Report | None = None,
) -> PreparedPairs:
    """Clean the pairs, train the tokenizers on the training part unless they are given, and encode all parts.

    Results are cached. Validation and test data are found as by `corpus.prepare`; in addition, a test split that comes
    with the training data is used. Both sides share one vocabulary unless `config.separate_vocabularies` or
    `source_tokenizer_spec` is set. `rewrite` replaces the targets to train on; the vocabularies remain those of the
    original pairs.
    """

    def stage(name: str) -> Progress | None:
        return None if progress is None else partial(progress, name)

    origin = open_pairs(config.train, config.source, config)
    others = {split: found for split in SPLITS if (found := _held_out(split, config, origin)) is not None}
    clean = partial(cleaned, normalisation=normalisation_of(config), cache=cache, progress=stage("cleaning"))
    train = clean(origin, CleaningRules.for_training(config))
    splits = {split: clean(source, CleaningRules()) for split, source in others.items()}
    warnings = train.report.notes(origin.spec)
    for split, source in others.items():
        warnings += splits[split].report.notes(source.spec)
        warnings += shared_origins(origin.origins(), source.origins(), split)
    reports = {"training": train.report}
    reports |= {split: pairs.report for split, pairs in splits.items()}

    parts = cut_off(train.source, config, list(splits), cache=cache, progress=stage("counting"))
    warnings += drift_warnings(train.target, parts, config, cache=cache)
    splits |= {split: train for split in SPLITS if split in parts}
    if tokenizers is None:
        build = partial(tokenizer_of, part=parts.get(TRAINING), cache=cache, progress=stage("tokenizer"))
        if source_tokenizer_spec is None and not config.separate_vocabularies:
            joint = build(tokenizer_spec, [train.source, train.target])
            tokenizers = PairTokenizers(joint, joint)
        else:
            own = build(source_tokenizer_spec or tokenizer_spec, [train.source])
            tokenizers = PairTokenizers(own, build(tokenizer_spec, [train.target]))

    def encode(split: str, pairs: CleanPairs) -> PairedCorpus:
        return PairedCorpus.build(pairs, tokenizers, parts.get(split), cache=cache, progress=stage(f"{split} data"))

    encoded = {split: encode(split, pairs) for split, pairs in splits.items()}
    return PreparedPairs(
        tokenizers,
        encode(TRAINING, train if rewrite is None else rewrite(train)),
        encoded["validation"],
        encoded.get("test"),
        encoded["validation"] if rewrite is None else encode("validation", rewrite(splits["validation"])),
        shown=splits["validation"].first(SHOWN, parts.get("validation")),
        languages=origin.languages,
        names={split: others[split].spec if split in others else config.named(split) for split in splits},
        reports=reports,
        warnings=tuple(dict.fromkeys(warnings)),
    )


def pairs_as_text(config: DataConfig, split: Split, *, cache: Path | None = None) -> list[Pair]:
    """Return the cleaned pairs of a held-out split as text, in the order in which they are encoded."""
    origin = open_pairs(config.train, config.source, config)
    others = {one: found for one in SPLITS if (found := _held_out(one, config, origin)) is not None}
    clean = partial(cleaned, normalisation=normalisation_of(config), cache=cache)
    if split in others:
        pairs = clean(others[split], CleaningRules())
        return pairs.first(pairs.report.kept)
    train = clean(origin, CleaningRules.for_training(config))
    part = cut_off(train.source, config, list(others), cache=cache, progress=None).get(split)
    return train.first(train.report.kept, part)


SPLITS: tuple[Split, ...] = ("validation", "test")


def _held_out(split: Split, config: DataConfig, origin: PairSource) -> PairSource | None:
    """Return the pairs of a split that has its own data; None if it is taken from the training data."""
    valid = split == "validation"
    spec, source = (config.valid, config.valid_source) if valid else (config.test, config.test_source)
    if spec is not None:
        return open_pairs(spec, source, config)
    return None if not valid and config.test_fraction is not None else origin.held_out(split)


def encode_pairs(
    config: DataConfig,
    tokenizers: PairTokenizers,
    spec: str,
    source: str | None = None,
    *,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> PairedCorpus:
    """Encode other pairs with existing tokenizers and the fields and normalisation of `config`."""
    pairs = cleaned(open_pairs(spec, source, config), CleaningRules(), normalisation_of(config), cache=cache)
    return PairedCorpus.build(pairs, tokenizers, cache=cache, progress=progress)
