"""Tags: one for each word of a sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, final

import numpy as np

from chainrule.config import RunConfig
from chainrule.data.batching import by_length
from chainrule.data.conllu import END_OF_WORD, encode_tagged, joined_words, normalised_word, prepare_tagged, read_tagged
from chainrule.data.examples import PreparedExamples
from chainrule.data.parallel import PairedCorpus
from chainrule.data.source import normalisation_of
from chainrule.decoding.beam import beam_search
from chainrule.decoding.generation import Generation
from chainrule.decoding.structured import viterbi
from chainrule.errors import ConfigError, nearest
from chainrule.evaluation.entities import entity_score, has_entities
from chainrule.evaluation.labels import LabelScore, label_score
from chainrule.models.tagger import Tagger
from chainrule.tasks.base import Task, refuse_pairs
from chainrule.tasks.examples import WINDOW, ExampleData, LinePrediction, in_groups, in_windows
from chainrule.tasks.labels import ConfusionRun
from chainrule.tasks.training_data import TrainingBatches
from chainrule.training.checkpoint import RunFolder
from chainrule.training.progress import Fraction, Record, Reporter, shown_fraction
from chainrule.types import Sequences

SEARCHES = ("viterbi", "greedy", "beam")
MIN_WORD_COUNT = 2  # rarer words are read by their characters alone, which trains the model for unknown words
VALIDATION_SENTENCES = 300  # tagged at each validation


# Runs


class TaggedSentence(NamedTuple):
    """A sentence with its predicted tags."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    log_prob: float  # nats of these tags given the words


@dataclass(frozen=True, kw_only=True, repr=False)
class TagRun(ConfusionRun[Tagger]):
    """A model of tags given words."""

    model_type = Tagger
    does = "tags words"

    def tag(
        self,
        sentences: Iterable[Sequence[str]],
        *,
        search: str | None = None,
        beam: int = 5,
        window: int = WINDOW,
    ) -> Iterator[TaggedSentence | None]:
        """The best tags of each sentence, in order; None for one without words. There may be any number of sentences.

        By default the search is exact if the model is of first order (see `decoding.structured`), else by beam.
        """

        def tag(now: Sequence[Sequence[str]]) -> list[TaggedSentence]:
            rows = [self.encode(words) for words in now]
            found = self.decode(rows, [len(words) for words in now], search=search, beam=beam)
            return [
                TaggedSentence(tuple(words), tuple(self.labels[one] for one in best.ids), best.log_prob)
                for words, best in zip(now, found, strict=True)
            ]

        return in_windows(sentences, tag, window=window)

    def encode(self, words: Sequence[str]) -> list[int]:
        """The ids of a sentence, normalised as in training."""
        normalise = normalisation_of(self.config.data)
        ids: list[int] = self.tokenizer.encode(
            joined_words([normalised_word(word, normalise) for word in words])
        ).tolist()
        return ids

    @property
    def default_search(self) -> str:
        """Exact if the model is of first order."""
        return "viterbi" if self.model.receptive_field == 1 else "beam"

    def decode(
        self,
        rows: Sequence[Sequence[int]],
        lengths: Sequence[int],
        *,
        search: str | None = None,
        beam: int = 5,
        progress: Callable[[float], None] | None = None,
    ) -> list[Generation]:
        """The best tags of encoded sentences with the given numbers of words."""
        search = search or self.default_search
        if search not in SEARCHES:
            raise ConfigError(f"unknown search {search!r}; {nearest(search, SEARCHES)}")

        def compute(group: Sequence[int]) -> list[Generation]:
            source = Sequences.pack([rows[row] for row in group], device=self.model.device)
            counts = [lengths[row] for row in group]
            if search == "viterbi":
                return viterbi(self.model, counts, source=source)
            width = 1 if search == "greedy" else beam
            found = beam_search(self.model, [[]] * len(group), width=width, length=counts, source=source)
            return [best for best, *_ in found]

        return in_groups([len(row) for row in rows], compute, progress=progress)

    def predict_lines(
        self, lines: Iterable[str], *, search: str | None = None, beam: int = 5
    ) -> Iterator[LinePrediction | None]:
        for found in self.tag((line.split() for line in lines), search=search, beam=beam):
            yield None if found is None else LinePrediction(" ".join(found.tags), found._asdict())

    def score(
        self,
        data: str,
        *,
        search: str | None = None,
        beam: int = 5,
        progress: Fraction | bool | None = True,
    ) -> LabelScore:
        pairs = encode_tagged(read_tagged(data, self.config.data), self.tokenizer, self.labels)
        with shown_fraction(progress, "scoring") as report:
            result = self.score_pairs(pairs, search=search, beam=beam, progress=report)
        self.keep_score(result, pairs.target, data)
        return result

    def score_pairs(
        self,
        pairs: PairedCorpus,
        *,
        search: str | None = None,
        beam: int = 5,
        progress: Callable[[float], None] | None = None,
    ) -> LabelScore:
        """The score on encoded sentences with their tags."""
        rows = [row.tolist() for row in pairs.source.documents()]
        right = [row.tolist() for row in pairs.target.documents()]
        found = self.decode(rows, [len(tags) for tags in right], search=search, beam=beam, progress=progress)
        whole = sum(one.ids == tags for one, tags in zip(found, right, strict=True)) / len(right)
        score = label_score(
            [tag for tags in right for tag in tags],
            [tag for one in found for tag in one.ids],
            self.labels,
            texts=len(right),
            whole=whole,
        )
        if not has_entities(self.labels):
            return score
        named = [[[self.labels[tag] for tag in tags] for tags in rows] for rows in (right, [one.ids for one in found])]
        entity = entity_score(*named)
        return score.model_copy(
            update={
                "entity_precision": entity.precision,
                "entity_recall": entity.recall,
                "entity_f1": entity.f1,
                "entities": entity.entities,
            }
        )

    def about(self) -> dict[str, Any]:
        return super().about() | {"labels": ", ".join(self.labels), "known_words": self.model.config.words}


# Data


@final
class TagData(ExampleData[Tagger, TagRun]):
    """Tags to predict from words."""

    model_type = Tagger
    run_type = TagRun

    def __init__(self, prepared: PreparedExamples) -> None:
        super().__init__(prepared.tokenizer, prepared.train, prepared.held_out, prepared.names, prepared.warnings)
        self.labels = prepared.labels
        self.separator = int(self.tokenizer.encode(END_OF_WORD)[0])
        counts = Counter(
            word.tobytes()
            for row in prepared.train.source.documents()
            for word in np.split(np.asarray(row, np.int32), np.flatnonzero(np.asarray(row) == self.separator) + 1)
            if len(word)
        )
        self.known = sorted(word for word, count in counts.items() if count >= MIN_WORD_COUNT)

    @property
    def model_settings(self) -> dict[str, Any]:
        return {
            "vocabulary": len(self.labels),
            "source_vocabulary": self.tokenizer.vocabulary,
            "labels": self.labels,
            "separator": self.separator,
            "words": len(self.known),
        }

    def batches(self, model: Tagger, config: RunConfig, reporter: Reporter) -> TrainingBatches:
        if self.known:
            words = [np.frombuffer(word, np.int32).tolist() for word in self.known]
            model.word_encoder.set_known_words(Sequences.pack(words, device=model.device))
        return super().batches(model, config, reporter)

    def validation_metrics(self, model: Tagger, config: RunConfig) -> Callable[[], Record]:
        """Accuracy of greedy tags on the first validation sentences."""
        validation = islice(self.splits["validation"].ids(), VALIDATION_SENTENCES)
        pairs = [(source.tolist(), target.tolist()) for source, target in validation]

        def metrics() -> Record:
            right = 0
            for group in by_length([len(source) for source, _ in pairs], 64, config.train.batch_tokens * 4):
                sources, targets = zip(*(pairs[row] for row in group), strict=True)
                lengths = [len(target) for target in targets]
                source = Sequences.pack(sources, device=model.device)
                found = beam_search(model, [[]] * len(group), width=1, length=lengths, source=source)
                for (one, *_), target in zip(found, targets, strict=True):
                    right += sum(tag == wanted for tag, wanted in zip(one.ids, target, strict=True))
            return {"valid_accuracy": right / sum(len(target) for _, target in pairs)}

        return metrics

    def score_split(self, run: TagRun, split: str, progress: Callable[[float], None]) -> LabelScore:
        return run.score_pairs(self.splits[split], progress=progress)


class TagsTask(Task):
    """P(tag_t | tag_<t, words)."""

    run = TagRun
    missing_data = "no training data was given; name tagged sentences in CoNLL-U or in columns with --data"

    @classmethod
    def open(cls, config: RunConfig, reporter: Reporter, stored: RunFolder | None) -> TagData:
        refuse_pairs(config)
        known = None if stored is None else stored.tokenizer()
        labels = () if stored is None else stored.config().model.get("labels", ())
        return TagData(prepare_tagged(config.data, config.tokenizer, tokenizer=known, labels=labels))
