"""Text: models of one long text or of many documents, which score it and continue it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self, final

from chainrule.compose.reverse import reversed_corpus
from chainrule.config import DataConfig, RunConfig
from chainrule.data.batching import Documents, Lanes, Windows
from chainrule.data.corpus import Corpus, Prepared, Report, encode_file, prepare
from chainrule.decoding import Generation, Sampling, beam_search, stream_tokens
from chainrule.decoding.drafts import (
    Drafter,
    FallbackDrafter,
    LookaheadDrafter,
    LookupDrafter,
    ModelDrafter,
    ngram_draft_model,
)
from chainrule.errors import ConfigError, DataError, DecodingError
from chainrule.interface.base import AutoregressiveModel, NeuralModel
from chainrule.interface.capabilities import BlockPredictor, is_right_to_left
from chainrule.tasks.base import (
    HeldOut,
    LikelihoodData,
    ModelT,
    RunT,
    Task,
    TrainingBatches,
    TrainingData,
    refuse_pairs,
)
from chainrule.tasks.sequences import ScoredCorpus, SequenceRun, SequenceSplits, TokenRun
from chainrule.training.checkpoint import RunFolder
from chainrule.training.learner import CarriedSegments, WholeSequences
from chainrule.training.progress import Reporter

REPEATED_SUFFIX = 16
"""Length of a repeated suffix from which on copying its continuation drafts better than an n-gram."""


# Data


def prepare_text(config: RunConfig, reporter: Reporter, stored: RunFolder | None) -> Prepared:
    """The encoded text of a run, with the tokenizer of the stored run if there is one."""
    refuse_pairs(config)
    tokenizer = None if stored is None else stored.tokenizer()
    return prepare(config.data, config.tokenizer, tokenizer=tokenizer, progress=reporter.preparing)


def text_splits(config: DataConfig, valid: Corpus, test: Corpus | None) -> dict[str, HeldOut]:
    """Held-out texts by the names of their splits."""
    found = {"validation": HeldOut(valid, None, config.named("validation"))}
    return found if test is None else found | {"test": HeldOut(test, None, config.named("test"))}


class PlainTextData(TrainingData[ModelT, RunT]):
    """One text or many documents, whatever is learned from them."""

    def __init__(self, prepared: Prepared, config: RunConfig) -> None:
        self.tokenizer, self.corpus, self.warnings = prepared.tokenizer, prepared.train, prepared.warnings
        self.held_out = text_splits(config.data, prepared.valid, prepared.test)
        self.monitored = self.held_out["validation"]
        self.prepared, self.config = prepared, config

    @property
    def model_settings(self) -> dict[str, Any]:
        return {"vocabulary": self.tokenizer.vocabulary}

    def data_settings(self, config: DataConfig) -> DataConfig:
        return config.model_copy(update={"unit": self.prepared.train.unit})

    def reversed(self) -> Self:
        train, valid, test = self.prepared.train, self.prepared.valid, self.prepared.test
        prepared = self.prepared._replace(
            train=reversed_corpus(train),
            valid=reversed_corpus(valid),
            test=None if test is None else reversed_corpus(test),
        )
        return type(self)(prepared, self.config)


# Runs


class GeneratedText(NamedTuple):
    """A generated text."""

    text: str
    log_prob: float  # nats of the generated tokens under the model
    tokens: int
    finished: str  # "eos", "stop" or "length"


@dataclass(frozen=True, kw_only=True)
class TextRun(TokenRun[AutoregressiveModel], SequenceRun):
    """A language model with its tokenizer."""

    model_type = AutoregressiveModel
    does = "generates text"
    use = "chainrule generate {run} --prompt …"

    def scored_corpus(self, text: str | None, data: str | None, source: str | None = None) -> ScoredCorpus:
        if (text is None) == (data is None):
            raise ConfigError("give either a text or data to score, and not both")
        if source is not None:
            raise ConfigError(f"{str(self.path)!r} is a language model and takes no source; remove it")
        if text is not None:
            unit = self.config.data.unit
            corpus = Corpus.of_text(text, self.tokenizer, unit="documents" if unit == "documents" else "stream")
        else:
            assert data is not None
            corpus = encode_file(self.config.data, self.tokenizer, data)
        return ScoredCorpus(reversed_corpus(corpus) if is_right_to_left(self.model) else corpus, None, data or "text")

    @property
    def vocabulary(self) -> object:
        return self.tokenizer.kind, self.tokenizer.to_json()

    def splits(self, config: DataConfig, progress: Report | None = None) -> SequenceSplits:
        prepared = prepare(config, self.config.tokenizer, tokenizer=self.tokenizer, progress=progress)
        return SequenceSplits(prepared.train, prepared.valid, prepared.test)

    def encode(self, config: DataConfig, spec: str) -> Corpus:
        return encode_file(config, self.tokenizer, spec)

    def create(self, folder: RunFolder, config: RunConfig) -> None:
        folder.create(config, self.tokenizer)

    def generate(
        self,
        prompt: str = "",
        *,
        length: int = 200,
        num: int = 1,
        seed: int = 0,
        stop: Sequence[str] = (),
        beam: int | None = None,
        length_penalty: float = 1.0,
        allow_unknown: bool = False,
        draft: TextRun | str | None = None,
        **sampling: Any,
    ) -> list[GeneratedText]:
        """Continue a prompt `num` times: sampled (see `decoding.Sampling` for the settings), or by beam search.

        A `draft` makes sampling faster and leaves the text unchanged (see `drafter`).
        """
        if beam is None:
            options: dict[str, Any] = {"length": length, "num": num, "seed": seed, "stop": stop, **sampling}
            texts = dict(self.stream(prompt, allow_unknown=allow_unknown, draft=draft, **options))
            return [texts[row] for row in range(num)]
        if draft is not None:
            raise ConfigError("beam search takes no draft; remove one of the two")
        if sampling:
            raise ConfigError(f"beam search does not sample; remove {', '.join(sorted(sampling))}")
        [found] = beam_search(
            self.autoregressive,
            [self._prompt_ids(prompt, allow_unknown)],
            width=max(beam, num),
            num=num,
            length=length,
            eos=self.tokenizer.eos,
            suppress=self._suppressed,
            length_penalty=length_penalty,
            stop=self._stop_condition(stop),
        )
        return [self._finished_text(one, stop) for one in found]

    def stream(
        self,
        prompt: str = "",
        *,
        length: int = 200,
        num: int = 1,
        seed: int = 0,
        stop: Sequence[str] = (),
        allow_unknown: bool = False,
        draft: TextRun | str | None = None,
        show: Callable[[str], None] | None = None,
        **sampling: Any,
    ) -> Iterator[tuple[int, GeneratedText]]:
        """As `generate`, yielding each text when it is finished; `show` receives the first text as it grows."""
        settings = Sampling.parse(sampling)
        ids = self._prompt_ids(prompt, allow_unknown)
        rows: list[list[int]] = [[] for _ in range(num)]
        log_probs = [0.0] * num
        shown = 0
        for tokens in stream_tokens(
            self.autoregressive,
            [ids] * num,
            length=length,
            sampling=settings,
            seeds=[seed + row for row in range(num)],
            eos=self.tokenizer.eos,
            suppress=self._suppressed,
            stop=self._stop_condition(stop),
            draft=None if draft is None else self.drafter(draft),
        ):
            for token in tokens:
                log_probs[token.row] += token.log_prob
                if token.finished != "eos":
                    rows[token.row].append(token.id)
                done = None
                if token.finished is not None:
                    done = self._finished_text(Generation(rows[token.row], log_probs[token.row], token.finished), stop)
                if show is not None and token.row == 0:
                    shown = self._show(rows[0], done, shown, show, stop)
                if done is not None:
                    yield token.row, done

    def drafter(self, draft: TextRun | str) -> Drafter:
        """The draft: a smaller run, "ngram" (counted in the training data), or "self" (the text, or lookahead)."""
        if draft == "self":
            return LookaheadDrafter(self.autoregressive) if isinstance(self.model, BlockPredictor) else LookupDrafter()
        if draft == "ngram":
            return FallbackDrafter(LookupDrafter(shortest=REPEATED_SUFFIX), self._ngram_draft())
        if isinstance(draft, str):
            raise ConfigError(f"the draft is {draft!r}; give a run, 'ngram' or 'self'")
        one_tokenizer = draft.tokenizer.to_json() == self.tokenizer.to_json()
        if not one_tokenizer or is_right_to_left(draft.model) != is_right_to_left(self.model):
            raise DecodingError(
                f"{str(draft.path)!r} has another {'direction' if one_tokenizer else 'vocabulary'} than "
                f"{str(self.path)!r}, so it cannot draft for it; give a run with the same tokenizer and direction"
            )
        return ModelDrafter(draft.autoregressive)

    def _ngram_draft(self) -> ModelDrafter:
        try:
            corpus = prepare(self.config.data, self.config.tokenizer, tokenizer=self.tokenizer).train
        except DataError as error:
            raise DecodingError(
                f"an n-gram draft is counted in the training data, which cannot be read ({error}); use --draft self"
            ) from None
        return ModelDrafter(
            ngram_draft_model(corpus, self.model.vocabulary, right_to_left=is_right_to_left(self.model))
        )

    def _show(
        self, ids: list[int], done: GeneratedText | None, shown: int, show: Callable[[str], None], stop: Sequence[str]
    ) -> int:
        """Pass on the text that is final: no part of a character, and nothing that may become a stop string.

        A text that is generated from right to left is final only at its end.
        """
        if done is None and is_right_to_left(self.model):
            return shown
        text = done.text if done is not None else self.tokenizer.decode(ids)
        end = len(text)
        if done is None:
            end -= max([len(one) - 1 for one in stop], default=0)
            while end > shown and text[end - 1] == "\ufffd":
                end -= 1
        if end > shown:
            show(text[shown:end])
            return end
        return shown

    def _prompt_ids(self, prompt: str, allow_unknown: bool) -> list[int]:
        """The ids of a prompt. Unknown tokens are refused unless they are allowed."""
        unknown = self.tokenizer.unknown
        ids: list[int] = self.tokenizer.encode(prompt).tolist()
        if unknown in ids and not allow_unknown:
            parts = [part for part in prompt.split() if unknown in self.tokenizer.encode(part)]
            named = ", ".join(map(repr, parts[:3])) or "white space"
            raise DecodingError(
                f"the prompt has tokens that are not in the vocabulary, in {named}; "
                "remove them, or read them as <unk> with --allow-unknown"
            )
        return self._in_model_order(ids)

    def _finished_text(self, generation: Generation, stop: Sequence[str]) -> GeneratedText:
        text = self.tokenizer.decode(self._in_model_order(generation.ids))
        if is_right_to_left(self.model):
            text = text[max((text.rindex(one) + len(one) for one in stop if one in text), default=0) :]
        else:
            text = text[: min((text.index(one) for one in stop if one in text), default=len(text))]
        return GeneratedText(text, generation.log_prob, len(generation.ids), generation.finished)

    def _in_model_order(self, ids: list[int]) -> list[int]:
        """From the order of the text to that of the model, or back."""
        return ids[::-1] if is_right_to_left(self.model) else ids

    def _stop_condition(self, stop: Sequence[str]) -> Callable[[Sequence[int]], bool] | None:
        if not stop:
            return None
        longest = max(len(one) for one in stop)

        def done(ids: Sequence[int]) -> bool:
            # A token is at least a byte, a character at most four: the tail is long enough for any stop string.
            tail = self.tokenizer.decode(self._in_model_order(list(ids[-4 * longest - 4 :])))
            return any(one in tail for one in stop)

        return done

    @property
    def _suppressed(self) -> list[int]:
        """Ids that are never generated: <unk>, padding of the vocabulary, and EOS if training never had one."""
        unknown = [] if self.tokenizer.unknown is None else [self.tokenizer.unknown]
        never_seen = [self.tokenizer.eos] if self.config.data.unit == "stream" else []
        without_text = range(self.tokenizer.vocabulary, self.model.vocabulary)  # of padded vocabularies
        return [*unknown, *never_seen, *without_text]


@final
class TextData(PlainTextData[NeuralModel, TextRun], LikelihoodData[NeuralModel, TextRun]):
    """Text in which each token is predicted from those before it."""

    model_type = NeuralModel
    run_type: ClassVar[type[TextRun]] = TextRun

    def batches(self, model: NeuralModel, config: RunConfig, reporter: Reporter) -> TrainingBatches:
        """By documents, by windows if the model has a context, else by lanes with a carried state."""
        settings, corpus = config.train, self.corpus
        length = settings.segment or model.segment
        rows = max(1, settings.batch_tokens // length)
        if corpus.unit == "documents":
            longest = model.context if model.context is not None else settings.segment
            return TrainingBatches(Documents(corpus, settings.batch_tokens, longest, config.seed), WholeSequences)
        if model.context is None:
            return TrainingBatches(Lanes(corpus, rows, length, config.seed), CarriedSegments)
        if length > model.context:
            raise ConfigError(
                f"train.segment {length} is longer than model.context {model.context}; lower the one or raise the other"
            )
        return TrainingBatches(Windows(corpus, rows, length, config.seed), WholeSequences)


class TextTask(Task):
    """P(x_t | x_<t) of text."""

    run = TextRun
    missing_data = "no training data was given; name a file, a folder, builtin:prose or hub:NAME with --data"

    @classmethod
    def open(cls, config: RunConfig, reporter: Reporter, stored: RunFolder | None) -> TextData:
        return TextData(prepare_text(config, reporter, stored), config)
