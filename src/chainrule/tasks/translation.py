"""Translation: models of a target given a source, from parallel text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from chainrule.compose.reverse import reversed_corpus
from chainrule.config import DataConfig, RunConfig
from chainrule.data.batching import Pairs
from chainrule.data.cleaning import CleaningReport, sentence
from chainrule.data.corpus import Corpus, Report
from chainrule.data.parallel import (
    SHOWN,
    PairedCorpus,
    PairTokenizers,
    PreparedPairs,
    encode_pairs,
    prepare_pairs,
)
from chainrule.data.source import normalisation_of
from chainrule.data.text import read_all_lines
from chainrule.decoding import Alignment, Search, TranslatedText, Translator
from chainrule.decoding.drafts import Drafter, LookaheadDrafter, ModelDrafter
from chainrule.decoding.one_pass import decodes_in_one_pass
from chainrule.decoding.translation import decoding_budget
from chainrule.decoding.translator import BUFFERED_LINES, MAX_SOURCE_TOKENS
from chainrule.errors import ConfigError, DecodingError, MissingExtra
from chainrule.evaluation.translation import TranslationScore, corpus_scores, score_translations
from chainrule.interface.base import AutoregressiveModel, DensityModel, NeuralModel
from chainrule.interface.capabilities import FitsStatistics, is_right_to_left
from chainrule.interface.conditional import Conditional, EmbeddingConfig, ParallelModel
from chainrule.metrics import score_rows
from chainrule.tasks.base import HeldOut, Task
from chainrule.tasks.mixable import MixableRun, named_data
from chainrule.tasks.scoring import ScoreReport, ScoreRequest
from chainrule.tasks.sequences import ScoredCorpus, TokenRun
from chainrule.tasks.training_data import LikelihoodData, TrainingBatches
from chainrule.tokenizers import Tokenizer
from chainrule.training.checkpoint import RunFolder
from chainrule.training.learner import WholeSequences
from chainrule.training.progress import Fraction, Record, Reporter, shown_fraction
from chainrule.types import Sequences

VALIDATION_METRICS = ("valid_bleu", "valid_chrf", "valid_exact_match", "bleu_signature")


# Runs


@dataclass(frozen=True, kw_only=True, repr=False)
class TranslationRun(TokenRun[AutoregressiveModel | ParallelModel], MixableRun[AutoregressiveModel | ParallelModel]):
    """A model of a target given a source, with the tokenizers of both."""

    model_type = DensityModel
    does = "translates"
    use = "chainrule translate {run} < my.txt"

    source_tokenizer: Tokenizer

    @classmethod
    def stored_parts(cls, folder: RunFolder) -> dict[str, Any]:
        return {"tokenizer": folder.tokenizer(), "source_tokenizer": folder.source_tokenizer()}

    @property
    def tokenizers(self) -> PairTokenizers:
        """The tokenizers of both sides."""
        return PairTokenizers(self.source_tokenizer, self.tokenizer)

    @property
    def vocabulary(self) -> object:
        return tuple((one.kind, one.to_json()) for one in self.tokenizers)

    def held_out_splits(self, config: DataConfig, progress: Report | None = None) -> dict[str, HeldOut]:
        prepared = prepare_pairs(config, self.config.tokenizer, tokenizers=self.tokenizers, progress=progress)
        return pair_splits(prepared)

    def held_out(self, config: DataConfig, split: str) -> HeldOut:
        source = config.test_source if split == "test" else config.valid_source
        pairs = encode_pairs(config, self.tokenizers, named_data(config, split), source)
        return HeldOut(pairs.target, pairs.source, config.named(split))

    def create(self, folder: RunFolder, config: RunConfig) -> None:
        folder.create(config, self.tokenizer, self.source_tokenizer)

    def scored_corpus(self, text: str | None, data: str | None, source: str | None = None) -> ScoredCorpus:
        if (text is None) == (data is None):
            raise ConfigError("give either a text or data to score, and not both")
        pairs = self._pairs(text, data, source)
        corpus = reversed_corpus(pairs.target) if is_right_to_left(self.model) else pairs.target
        return ScoredCorpus(corpus, pairs.source, data or "text")

    def _pairs(self, text: str | None, data: str | None, source: str | None) -> PairedCorpus:
        if text is None:
            assert data is not None
            return encode_pairs(self.config.data, self.tokenizers, data, source)
        if source is None:
            raise ConfigError("a translation is scored given its source; give the source of the text, too")
        return PairedCorpus.of_pair(self._normalised(source), self._normalised(text), self.tokenizers)

    def encode_source(self, texts: Sequence[str]) -> Sequences:
        """Sources as model input: normalised as in training, each ending with EOS. An empty text is EOS only."""
        tokenizer = self.tokenizers.source
        return Sequences.pack([[*tokenizer.encode(self._normalised(text)), tokenizer.eos] for text in texts])

    def _normalised(self, text: str) -> str:
        return sentence(text, normalisation_of(self.config.data))

    def translate(
        self,
        texts: str | Iterable[str | TranslatedText],
        search: Search | None = None,
        *,
        batch: int = 32,
        longest: int = MAX_SOURCE_TOKENS,
        copy_unknown: bool = False,
        agree_with: TranslationRun | None = None,
        draft: TranslationRun | str | None = None,
        window: int = BUFFERED_LINES,
    ) -> Iterator[list[TranslatedText]]:
        """The best translations of each text, best first, in the order of the texts, of which there may be any number.

        Empty texts stay empty, and texts of more than `longest` tokens are passed through: `finished` says so. With
        `agree_with`, the candidates of both runs are ranked by both, for example one left-to-right and one
        right-to-left model. A `draft` makes greedy search faster and leaves the result unchanged (see `drafter`).
        """
        return self.translator().translate_stream(
            [texts] if isinstance(texts, str) else texts,
            search or Search(),
            batch=batch,
            longest=longest,
            copy_unknown=copy_unknown,
            agree_with=None if agree_with is None else agree_with.translator(),
            draft=None if draft is None else self.drafter(draft),
            window=window,
        )

    def sample_metrics(self, corpus: Corpus, source: Corpus | None, count: int) -> dict[str, float]:
        """BLEU of greedy translations."""
        assert source is not None
        sources, references = (
            [tokenizer.decode([int(token) for token in document if token != tokenizer.eos]) for document in documents]
            for tokenizer, documents in (
                (self.source_tokenizer, islice(source.documents(), count)),
                (self.tokenizer, islice(corpus.documents(), count)),
            )
        )
        found = [best.text for best, *_ in self.translate(sources, Search(beam=1))]
        return {"bleu": float(corpus_scores(found, references)["bleu"])}

    def drafter(self, draft: TranslationRun | str) -> Drafter:
        """The draft: "self" (its parallel prediction from the source), "int8" (its weights in int8), or another run."""
        if draft == "self":
            return LookaheadDrafter(self.autoregressive)
        if draft == "int8":
            return ModelDrafter(self.with_weights("int8").autoregressive)
        if isinstance(draft, str):
            raise ConfigError(f"the draft is {draft!r}; give a run, 'self' or 'int8'")
        one_vocabulary = all(
            one.to_json() == other.to_json() for one, other in zip(draft.tokenizers, self.tokenizers, strict=True)
        )
        if not one_vocabulary or is_right_to_left(draft.model) != is_right_to_left(self.model):
            raise DecodingError(
                f"{str(draft.path)!r} has {'another direction' if one_vocabulary else 'other vocabularies'} than "
                f"{str(self.path)!r}, so it cannot draft for it; give a run with the same tokenizers and direction"
            )
        return ModelDrafter(draft.autoregressive)

    def score_translations(
        self,
        sources: Sequence[str],
        references: Sequence[str],
        search: Search | None = None,
        *,
        batch: int = 32,
        target_language: str | None = None,
        progress: Fraction | bool | None = True,
    ) -> TranslationScore:
        """BLEU, chrF and exact match of translations of the sources, and the likelihood of the references."""
        with shown_fraction(progress, "translating") as report:
            return score_translations(
                self.translator(),
                sources,
                references,
                search or Search(),
                target_language=target_language or self.config.data.target_language or "",
                batch=batch,
                progress=report,
            )

    def evaluate(self, request: ScoreRequest, progress: Callable[[float], None] | None = None) -> ScoreReport:
        """Likelihood of given translations; with references, the quality of the run's own translations."""
        if request.references is None:
            return super().evaluate(request, progress)
        assert request.source is not None
        search = Search.parse(request.search)
        found = self.score_translations(
            read_all_lines(Path(request.source)),
            read_all_lines(request.references),
            search,
            batch=request.batch,
            target_language=request.target_language,
            progress=progress,
        ).model_dump(mode="json")
        rows = score_rows(found) | {
            "BLEU signature": found["bleu_signature"],
            "chrF signature": found["chrf_signature"],
            "search": self._described(search),
        }
        return ScoreReport(found, rows)

    def _described(self, search: Search) -> str:
        """The decoding method in a few words."""
        if isinstance(self.model, ParallelModel):
            budget = decoding_budget(self.model, search)
            return f"in parallel: passes {budget.passes}, lengths {budget.lengths}"
        if decodes_in_one_pass(self.model):
            return "in one pass"
        return f"beam {search.beam}, length penalty {search.length_penalty:g}"

    def align(self, source: str, target: str | None = None, *, beam: int = 5) -> Alignment:
        """Cross-attention of each target token to the source; by default of the model's own translation."""
        if target is None:
            [[best, *_]] = self.translate(source, Search(beam=beam))
            if best.is_untranslated:
                raise DecodingError(f"the source is {best.finished}; give a sentence that the model can translate")
            target = best.text
        return self.translator().align(source, target)

    def translator(self) -> Translator:
        """The model with the tokenizers of both sides; texts are normalised as in training."""
        source, target = self.tokenizers
        return Translator(self.model, source, target, self._normalised)

    def about(self) -> dict[str, Any]:
        return super().about() | {
            "source": self.config.data.source,
            "distil_from": self.config.data.distil_from,
            "source_vocabulary": self.source_tokenizer.vocabulary,
            "source_tokenizer": self.config.source_tokenizer or self.config.tokenizer,
            "cleaning": self.folder.cleaning(),
            "bleu": self._last_bleu(),
        }

    def _last_bleu(self) -> Record | None:
        return next((one for one in reversed(self.folder.records("metrics.jsonl")) if "valid_bleu" in one), None)

    def summary_rows(self) -> dict[str, Any]:
        """The pairs that cleaning has kept, and BLEU at the last validation."""
        cleaning = self.folder.cleaning().items()
        rows: dict[str, Any] = {f"{split}_pairs": CleaningReport(**found).summary() for split, found in cleaning}
        if (bleu := self._last_bleu()) is not None:
            rows |= {name: bleu[name] for name in VALIDATION_METRICS}
        return rows

    def card_lines(self) -> list[str]:
        data = self.config.data
        lines = [f"- source: {data.source}"] if data.source else []
        if data.distil_from:
            lines.append(f"- distilled from: {data.distil_from}")
        name = self.config.source_tokenizer or self.config.tokenizer
        lines.append(f"- source vocabulary: {self.source_tokenizer.vocabulary:,} ({name})")
        for split, report in self.folder.cleaning().items():
            lines.append(f"- {split} pairs: {CleaningReport(**report).summary()}")
        if (bleu := self._last_bleu()) is not None:
            metrics = f"BLEU {bleu['valid_bleu']:.2f}, chrF {bleu['valid_chrf']:.2f} at step {bleu['step']:,}"
            lines.append(f"- first {SHOWN} validation pairs, greedy search: {metrics} ({bleu['bleu_signature']})")
        return lines


# Data


def pair_splits(prepared: PreparedPairs) -> dict[str, HeldOut]:
    """Held-out pairs by the names of their splits."""
    splits = {"validation": prepared.valid, "test": prepared.test}
    return {
        name: HeldOut(pairs.target, pairs.source, prepared.names[name])
        for name, pairs in splits.items()
        if pairs is not None
    }


class TranslationData(LikelihoodData[NeuralModel | ParallelModel, TranslationRun]):
    """Targets to predict from their sources."""

    model_type = Conditional
    run_type = TranslationRun
    source_tokenizer: Tokenizer

    def __init__(self, prepared: PreparedPairs) -> None:
        self.source_tokenizer, self.tokenizer = prepared.tokenizers
        self.corpus, self.warnings = prepared.train.target, prepared.warnings
        self.held_out = pair_splits(prepared)
        self.monitored = self.held_out["validation"]._replace(
            corpus=prepared.monitored.target, source=prepared.monitored.source
        )
        self._prepared = prepared

    @property
    def model_settings(self) -> dict[str, int]:
        return {"vocabulary": self.tokenizer.vocabulary, "source_vocabulary": self.source_tokenizer.vocabulary}

    def data_settings(self, config: DataConfig) -> DataConfig:
        language = config.target_language or self._prepared.languages.target or None
        return config.model_copy(update={"unit": "documents", "target_language": language})

    def create(self, folder: RunFolder, config: RunConfig) -> None:
        super().create(folder, config)
        folder.write_cleaning({split: asdict(report) for split, report in self._prepared.reports.items()})

    def batches(self, model: NeuralModel | ParallelModel, config: RunConfig, reporter: Reporter) -> TrainingBatches:
        self._require_one_vocabulary(model.config)
        if isinstance(model, FitsStatistics):
            progress = partial(reporter.preparing, "features of the sources")
            model.fit_statistics(self._prepared.train.ids(), progress=progress)
        feed = Pairs(
            self._prepared.train,
            config.train.batch_tokens,
            config.seed,
            longest=(model.source_context, model.context),
        )
        if feed.left_out:
            reporter.note(
                f"{feed.left_out:,} of {self._prepared.train.pairs:,} training pairs are longer than the model's "
                "context and are left out; raise model.context to train on them"
            )
        return TrainingBatches(feed, WholeSequences)

    def _require_one_vocabulary(self, config: object) -> None:
        """Shared embeddings of two vocabularies would give one vector to two unrelated words."""
        shared = isinstance(config, EmbeddingConfig) and config.shared_embeddings
        if shared and self.source_tokenizer.to_json() != self.tokenizer.to_json():
            raise ConfigError(
                "model.shared_embeddings needs one vocabulary, but each side has its own; remove "
                "data.separate_vocabularies and source_tokenizer, or set model.shared_embeddings=false"
            )

    def validation_metrics(self, model: NeuralModel | ParallelModel, config: RunConfig) -> Callable[[], Record]:
        """BLEU and chrF of greedy translations of the first validation pairs."""
        installed = find_spec("sacrebleu") is not None
        if config.train.validate_bleu and not installed:
            raise MissingExtra("BLEU at validations", "translation")
        if config.train.validate_bleu is False or not installed:
            return dict
        sources, references = zip(*self._prepared.shown, strict=True)
        translator = Translator(model, self.source_tokenizer, self.tokenizer)
        # Limited to twice the usual length, because an untrained model may not generate EOS for a long time.
        valid = self._prepared.valid
        search = Search(beam=1, growth=2 * len(valid.target) / len(valid.source), slack=10)

        def metrics() -> Record:
            found = translator.translate_texts(sources, search, batch=len(sources))
            scores = corpus_scores(
                [best.text for best, *_ in found], references, target_language=config.data.target_language or ""
            )
            return {name if name.endswith("signature") else f"valid_{name}": value for name, value in scores.items()}

        return metrics

    def reversed(self) -> TranslationData:
        """Targets from right to left; sources stay as they are."""

        def reverse(pairs: PairedCorpus) -> PairedCorpus:
            return replace(pairs, target=reversed_corpus(pairs.target))

        test = self._prepared.test
        return TranslationData(
            self._prepared._replace(
                train=reverse(self._prepared.train),
                valid=reverse(self._prepared.valid),
                monitored=reverse(self._prepared.monitored),
                test=None if test is None else reverse(test),
            )
        )


class TranslationTask(Task):
    """P(y_t | y_<t, source), from parallel text."""

    run = TranslationRun
    missing_data = (
        "no training data was given; name pairs with --source and --target, or a .tsv file or builtin:dates with --data"
    )

    @classmethod
    def open(cls, config: RunConfig, reporter: Reporter, stored: RunFolder | None) -> TranslationData:
        from chainrule.tasks.distillation import distilled  # needs the runs of this task

        teacher, rewrite = config.data.distil_from, None
        if teacher is not None:
            progress = partial(reporter.preparing, f"translating by {Path(teacher).name}")
            rewrite = partial(
                distilled, teacher=teacher, limit=config.data.distil_pairs, device=config.device, progress=progress
            )
        pairs = prepare_pairs(
            config.data,
            config.tokenizer,
            config.source_tokenizer,
            tokenizers=None if stored is None else PairTokenizers(stored.source_tokenizer(), stored.tokenizer()),
            rewrite=rewrite,
            progress=reporter.preparing,
        )
        return TranslationData(pairs)
