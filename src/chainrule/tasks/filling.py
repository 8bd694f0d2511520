"""Filling: models that see both sides of a gap and predict what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, final

import numpy as np

from chainrule.config import DataConfig, RunConfig
from chainrule.data.batching import cut_documents
from chainrule.data.corpus import Corpus, Prepared
from chainrule.data.permutation import draw
from chainrule.data.spans import Corrupted, Corruption
from chainrule.data.token_files import Tokens
from chainrule.decoding.filling import Filling, FillSearch, fill
from chainrule.errors import ConfigError
from chainrule.families import family
from chainrule.interface.base import Model, NeuralModel, OwnObjective
from chainrule.interface.capabilities import Infills
from chainrule.models.t5 import SENTINELS, T5Config
from chainrule.tasks.base import HeldOut, Run, Task
from chainrule.tasks.embeddings import EmbeddingRun, EncoderData, text_feed
from chainrule.tasks.generated_answers import GeneratedAnswerRun, has_pairs, open_answers
from chainrule.tasks.text import PlainTextData, prepare_text
from chainrule.tasks.training_data import LikelihoodData, TrainingBatches, TrainingData
from chainrule.tokenizers.bytes import Bytes
from chainrule.tokenizers.chars import Chars
from chainrule.tokenizers.huggingface import HuggingFace
from chainrule.training.checkpoint import RunFolder
from chainrule.training.learner import WholeSequences
from chainrule.training.progress import Reporter

GAP = "<>"
SPECIAL_TOKENS = {"[CLS]": "start", "[SEP]": "end", "[MASK]": "mask"}  # of a BERT vocabulary -> settings of bert
COUNTED_TOKENS = 1 << 17  # training tokens whose spans give the token frequencies of targets
SPAN_SEED = 0  # of the spans in held-out text, whatever the seed of the run, so that runs are comparable


# Runs


class FilledText(NamedTuple):
    """A text with its gaps filled."""

    text: str
    gaps: list[str]  # what was generated for each gap
    log_prob: float  # nats of all gaps given the rest of the text


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class FillingRun(EmbeddingRun[Model]):
    """A model that fills gaps. It also embeds texts."""

    does = "fills gaps"
    use = 'chainrule fill {run} --text "… <> …"'

    def fill(self, text: str, *, num: int = 5, beam: int | None = None, longest: int = 16) -> list[FilledText]:
        """The best fillings, best first, of a text in which `<>` marks the gaps.

        A masked language model predicts one token for each gap; two adjacent gaps are two tokens. A span model
        generates up to `longest` tokens for each.
        """
        if beam is not None and beam < num:
            raise ConfigError(f"--beam must be at least --num (got {beam} < {num}); raise --beam to {num}")
        parts = [self.tokenizer.encode(part).tolist() for part in self._parts(text)]
        limits = FillSearch(beam=beam or max(8, num), longest=longest, suppress=tuple(self._suppressed))
        found = fill(self.model, parts, limits, eos=self.tokenizer.eos)
        return [self._filled(parts, one) for one in found[:num]]

    def _parts(self, text: str) -> list[str]:
        """The text between the gaps.

        Tokens begin with the space that separates them from the word before, so a space before a gap belongs to the
        gap, unless tokens are single characters.
        """
        *before, last = text.split(GAP)
        if isinstance(self.tokenizer, Chars | Bytes):
            return [*before, last]
        return [*(part.removesuffix(" ") for part in before), last]

    def _filled(self, parts: list[list[int]], filling: Filling) -> FilledText:
        ids = list(parts[0])
        for span, part in zip(filling.spans, parts[1:], strict=True):
            ids += [*span, *part]
        gaps = [self.tokenizer.decode(span) for span in filling.spans]
        return FilledText(self.tokenizer.decode(ids), [gap.strip(" ") or gap for gap in gaps], filling.log_prob)

    @property
    def _suppressed(self) -> list[int]:
        """Ids that are never generated: <unk>, EOS, special tokens and ids without text."""
        tokenizer = self.tokenizer
        unknown = [] if tokenizer.unknown is None else [tokenizer.unknown]
        special = tokenizer.special if isinstance(tokenizer, HuggingFace) else []
        without_text = range(tokenizer.vocabulary, self.model.vocabulary)
        return sorted({*unknown, tokenizer.eos, *special, *without_text})


# Data


@final
class MaskedTextData(EncoderData[OwnObjective, FillingRun]):
    """Texts for a masked language model."""

    run_type = FillingRun

    @property
    def model_settings(self) -> dict[str, Any]:
        """A vocabulary made for BERT has ids for special tokens; for any other the model adds them at its end."""
        sizes, tokenizer = super().model_settings, self.tokenizer
        if not isinstance(tokenizer, HuggingFace):
            return sizes
        own = {setting: tokenizer.id_of(name) for name, setting in SPECIAL_TOKENS.items()}
        return sizes | {setting: index for setting, index in own.items() if index is not None}


@final
class SpanTextData(PlainTextData[NeuralModel, FillingRun], LikelihoodData[NeuralModel, FillingRun]):
    """Texts for span corruption: spans are cut out as the text is read, and are the targets.

    Held-out text has the same spans in every run. Its metrics are about the spans: nats per token of the targets, bits
    per byte of the hidden text.
    """

    model_type = NeuralModel
    run_type = FillingRun

    def __init__(self, prepared: Prepared, config: RunConfig) -> None:
        super().__init__(prepared, config)
        words, sentinels = self.tokenizer.vocabulary, config.model.get("sentinels", SENTINELS)
        self._sizes = {"vocabulary": words + sentinels, "source_vocabulary": words + sentinels}
        settings = T5Config.parse({**config.model, **self._sizes}, where="model")
        self.corruption = Corruption(
            sentinels=range(words, words + sentinels),
            eos=self.tokenizer.eos,
            rate=settings.corruption_rate,
            mean=settings.mean_span_length,
        )
        self.length = self._row_length(settings.context, config.train.segment)
        self.monitored = self._with_spans(self.held_out["validation"], config.train.validate_tokens)
        self.held_out = {split: self._with_spans(held) for split, held in self.held_out.items()}
        self.corpus = self._with_spans(HeldOut(prepared.train, None, "training"), COUNTED_TOKENS).corpus

    @property
    def model_settings(self) -> dict[str, Any]:
        return self._sizes

    def batches(self, model: NeuralModel, config: RunConfig, reporter: Reporter) -> TrainingBatches:
        texts = text_feed(self.prepared.train, self.length, config.train, config.seed)
        return TrainingBatches(Corrupted(texts, self.corruption, config.seed), WholeSequences)

    def _row_length(self, context: int, wanted: int | None) -> int:
        """Tokens of a text whose source and target both fit into the context, EOS included."""
        length = min(wanted or context, context - 1)
        while sum(self.corruption.counts(length)) + 1 > context:
            length -= 1
        return length

    def _with_spans(self, held: HeldOut, tokens: int | None = None) -> HeldOut:
        """A text, or its first tokens, as pairs of corrupted text and spans, in memory."""
        pairs = [
            self.corruption.corrupt(piece, draw(SPAN_SEED, 0, f"spans of piece {number}"))
            for number, piece in enumerate(self._pieces(held.corpus, tokens))
        ]
        vocabulary = self._sizes["vocabulary"]
        targets = Corpus.of_rows([pair.target for pair in pairs], vocabulary)
        hidden = [self.tokenizer.decode(span) for pair in pairs for span in self.corruption.spans_of(pair)]
        return held._replace(
            corpus=replace(
                targets,
                bytes=sum(len(text.encode()) for text in hidden),
                characters=sum(map(len, hidden)),
                words=sum(len(text.split()) for text in hidden),
            ),
            source=Corpus.of_rows([pair.source for pair in pairs], vocabulary),
        )

    def _pieces(self, corpus: Corpus, tokens: int | None) -> Iterator[Tokens]:
        """The text in rows of the same length as in training."""
        limit = min(len(corpus), tokens or len(corpus))
        edges = np.array([0, limit]) if corpus.offsets is None else np.asarray(corpus.offsets)
        starts, lengths = cut_documents(edges, self.length)
        for start, length in zip(starts[starts < limit], lengths[starts < limit], strict=True):
            yield corpus.tokens[start : start + length]


class FillingTask(Task):
    """P(gap | text around it); with pairs, P(answer | question)."""

    run = FillingRun
    missing_data = "no training data was given; name a file, a folder, builtin:prose or hub:NAME with --data"

    @classmethod
    def run_for(cls, data: DataConfig) -> type[Run]:
        return GeneratedAnswerRun if data.pairs else FillingRun

    @classmethod
    def open(cls, config: RunConfig, reporter: Reporter, stored: RunFolder | None) -> TrainingData[Any, Any]:
        spans = issubclass(family(config.family), Infills)
        if spans and has_pairs(config.data):
            return open_answers(config, reporter, stored)
        prepared = prepare_text(config, reporter, stored)
        if spans:
            return SpanTextData(prepared, config)
        return MaskedTextData(prepared, config)
