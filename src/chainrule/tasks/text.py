"""Text: models of one long text or of many documents, which score it and continue it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self, final

from chainrule.compose.reverse import reversed_corpus
from chainrule.config import DataConfig, RunConfig
from chainrule.data.batching import Documents, Lanes, Windows
from chainrule.data.corpus import Corpus, Prepared, Report, encode_file, prepare
from chainrule.data.text import require_path
from chainrule.decoding import GeneratedToken, Generation, Sampling, beam_search, stream_tokens
from chainrule.decoding.drafts import (
    DeferredDrafter,
    Drafter,
    FallbackDrafter,
    LookaheadDrafter,
    LookupDrafter,
    ModelDrafter,
    ngram_draft_model,
)
from chainrule.errors import ConfigError, DataError, DecodingError
from chainrule.evaluation.choice import ChoiceScore, read_choices, score_choices
from chainrule.interface.base import AutoregressiveModel, NeuralModel
from chainrule.interface.capabilities import BlockPredictor, is_right_to_left
from chainrule.tasks.base import RunT, Task, refuse_pairs
from chainrule.tasks.sequences import (
    ScoredCorpus,
    SequenceRun,
    SequenceSplits,
    TokenRun,
    text_splits,
)
from chainrule.tasks.training_data import LikelihoodData, ModelT, TrainingBatches, TrainingData
from chainrule.training.checkpoint import RunFolder
from chainrule.training.learner import CarriedSegments, WholeSequences
from chainrule.training.progress import Fraction, Reporter, shown_fraction

REPEATED_SUFFIX = 16
"""Length of a repeated suffix from which on copying its continuation drafts better than an n-gram."""
OPENING_SECONDS = 0.1  # to open the encoded training data


# Data


def prepare_text(config: RunConfig, reporter: Reporter, stored: RunFolder | None) -> Prepared:
    """The encoded text of a run, with the tokenizer of the stored run if there is one."""
    refuse_pairs(config)
    tokenizer = None if stored is None else stored.tokenizer()
    return prepare(config.data, config.tokenizer, tokenizer=tokenizer, progress=reporter.preparing)


class PlainTextData(TrainingData[ModelT, RunT]):
    """One text or many documents, whatever is learned from them."""

    def __init__(self, prepared: Prepared, config: RunConfig) -> None:
        self.tokenizer, self.corpus, self.warnings = prepared.tokenizer, prepared.train, prepared.warnings
        self.held_out = text_splits(prepared.config, prepared.valid, prepared.test)
        self.monitored = self.held_out["validation"]
        self.prepared, self.config = prepared, config

    @property
    def model_settings(self) -> dict[str, Any]:
        return {"vocabulary": self.tokenizer.vocabulary}

    def data_settings(self, config: DataConfig) -> DataConfig:
        return self.prepared.config

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
    prompt: str = ""  # which is not part of `text`


@dataclass(frozen=True, kw_only=True, repr=False)
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

    def score_choices(
        self,
        data: str,
        *,
        shots: int = 0,
        examples: str | None = None,
        progress: Fraction | bool | None = True,
    ) -> ChoiceScore:
        """Accuracy of choosing the most probable ending; the first examples of another file may come before."""
        if is_right_to_left(self.model):
            raise DecodingError(f"{str(self.path)!r} reads from right to left; give a left-to-right run")
        if (shots > 0) != (examples is not None):
            raise ConfigError("few-shot examples need both their number and their file: --shots K --examples FILE")
        given = [] if examples is None else read_choices(examples)
        if shots > len(given):
            raise ConfigError(f"{examples!r} has {len(given)} examples, and --shots asks for {shots}; ask for fewer")
        choices = read_choices(data)
        with shown_fraction(progress, "scoring") as report:
            found, _ = score_choices(self.autoregressive, self.tokenizer, choices, shots=given[:shots], progress=report)
        return found

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
        prompt: str | Sequence[str] = "",
        *,
        num: int = 1,
        **options: Any,
    ) -> list[GeneratedText]:
        """Continue a prompt, or each of several, `num` times; the options are those of `texts`.

        The texts are in the order of the prompts, `num` of each.
        """
        return list(self.texts([prompt] if isinstance(prompt, str) else prompt, num=num, **options))

    def texts(
        self,
        prompts: Sequence[str],
        *,
        length: int = 200,
        num: int = 1,
        seed: int = 0,
        stop: Sequence[str] = (),
        beam: int | None = None,
        length_penalty: float = 1.0,
        allow_unknown: bool = False,
        draft: TextRun | Drafter | str | None = None,
        batch: int = 32,
        progress: Callable[[float], None] | None = None,
        **sampling: Any,
    ) -> Iterator[GeneratedText]:
        """The texts of `generate`, one after the other: sampled (see `decoding.Sampling`), or by beam search.

        All prompts and options are checked before this returns. Text i has the seed `seed + i`; `batch` texts are
        decoded at once. A `draft` makes sampling faster and leaves the text unchanged (see `drafter`).
        `progress` receives the fraction of a beam search that is done.
        """
        limits: dict[str, Any] = {"length": length, "stop": stop}
        if beam is not None:
            if draft is not None:
                raise ConfigError("beam search takes no draft; remove one of the two")
            if sampling:
                raise ConfigError(f"beam search does not sample; remove {', '.join(sorted(sampling))}")
            return self._searched(
                prompts,
                self.prompt_ids(prompts, allow_unknown),
                num=num,
                width=max(beam, num),
                length_penalty=length_penalty,
                progress=progress,
                **limits,
            )
        rows = [ids for ids in self.prompt_ids(prompts, allow_unknown) for _ in range(num)]
        rules = Sampling.parse(sampling)
        drafter = self.drafter(draft) if isinstance(draft, str | TextRun) else draft
        batches = [
            self._sampled(rows[at : at + batch], seed=seed + at, rules=rules, draft=drafter, **limits)
            for at in range(0, len(rows), batch)
        ]
        ordered = (text for texts in batches for _, text in sorted(texts))
        return (text._replace(prompt=prompts[row // num]) for row, text in enumerate(ordered))

    def stream(
        self,
        prompt: str = "",
        *,
        show: Callable[[str], None],
        length: int = 200,
        seed: int = 0,
        stop: Sequence[str] = (),
        allow_unknown: bool = False,
        draft: TextRun | Drafter | str | None = None,
        **sampling: Any,
    ) -> Iterator[GeneratedText]:
        """As `texts`, for a single one that is sampled: `show` receives it as it grows."""
        drafter = self.drafter(draft) if isinstance(draft, str | TextRun) else draft
        texts = self._sampled(
            self.prompt_ids([prompt], allow_unknown),
            length=length,
            seed=seed,
            stop=stop,
            rules=Sampling.parse(sampling),
            draft=drafter,
            show=show,
        )
        return (text._replace(prompt=prompt) for _, text in texts)

    @property
    def right_to_left(self) -> bool:
        """Whether the model generates what comes before a prompt, from its end to its start."""
        return is_right_to_left(self.model)

    @property
    def of_documents(self) -> bool:
        """Whether the model was trained on separate documents, such as lines, and ends a text by itself."""
        return self.config.data.unit == "documents"

    def _searched(
        self,
        prompts: Sequence[str],
        rows: Sequence[list[int]],
        *,
        num: int,
        width: int,
        stop: Sequence[str],
        progress: Callable[[float], None] | None,
        **options: Any,
    ) -> Iterator[GeneratedText]:
        """The results of beam search, prompt by prompt; there may be fewer than `num` different texts."""

        def report(done: int, share: float) -> None:
            if progress is not None:
                progress((done + share) / len(prompts))

        for done, (prompt, ids) in enumerate(zip(prompts, rows, strict=True)):
            [found] = beam_search(
                self.autoregressive,
                [ids],
                width=width,
                num=num,
                eos=self.tokenizer.eos,
                suppress=self.suppressed,
                stop=self.stop_condition(stop),
                progress=functools.partial(report, done),
                **options,
            )
            yield from (self.finished_text(one, stop)._replace(prompt=prompt) for one in found)

    def _sampled(
        self,
        rows: Sequence[list[int]],
        *,
        length: int,
        seed: int,
        stop: Sequence[str],
        rules: Sampling,
        draft: Drafter | None,
        show: Callable[[str], None] | None = None,
    ) -> Iterator[tuple[int, GeneratedText]]:
        """One batch of texts, each with its row when it is finished; `show` receives the first text as it grows."""
        steps = stream_tokens(
            self.autoregressive,
            rows,
            length=length,
            sampling=rules,
            seeds=range(seed, seed + len(rows)),
            eos=self.tokenizer.eos,
            suppress=self.suppressed,
            stop=self.stop_condition(stop),
            draft=draft,
        )
        return self._finished_texts(steps, len(rows), stop, show)

    def _finished_texts(
        self,
        steps: Iterator[list[GeneratedToken]],
        count: int,
        stop: Sequence[str],
        show: Callable[[str], None] | None,
    ) -> Iterator[tuple[int, GeneratedText]]:
        rows: list[list[int]] = [[] for _ in range(count)]
        log_probs = [0.0] * count
        shown = 0
        for tokens in steps:
            for token in tokens:
                log_probs[token.row] += token.log_prob
                if token.finished != "eos":
                    rows[token.row].append(token.id)
                done = None
                if token.finished is not None:
                    done = self.finished_text(Generation(rows[token.row], log_probs[token.row], token.finished), stop)
                if show is not None and token.row == 0:
                    shown = self._show(rows[0], done, shown, show, stop)
                if done is not None:
                    yield token.row, done

    def drafter(self, draft: TextRun | str) -> Drafter:
        """The draft: a smaller run, "ngram" (of the training data), "self" (the text, or lookahead), or "int8"."""
        if draft == "self":
            return LookaheadDrafter(self.autoregressive) if isinstance(self.model, BlockPredictor) else LookupDrafter()
        if draft == "ngram":
            self._require_training_data()
            return FallbackDrafter(LookupDrafter(shortest=REPEATED_SUFFIX), DeferredDrafter(self._ngram_draft))
        if draft == "int8":
            return ModelDrafter(self.with_weights("int8").autoregressive)
        if isinstance(draft, str):
            raise ConfigError(f"the draft is {draft!r}; give a run, 'ngram', 'self' or 'int8'")
        one_tokenizer = draft.tokenizer.to_json() == self.tokenizer.to_json()
        if not one_tokenizer or is_right_to_left(draft.model) != is_right_to_left(self.model):
            raise DecodingError(
                f"{str(draft.path)!r} has another {'direction' if one_tokenizer else 'vocabulary'} than "
                f"{str(self.path)!r}, so it cannot draft for it; give a run with the same tokenizer and direction"
            )
        return ModelDrafter(draft.autoregressive)

    def _require_training_data(self) -> None:
        try:
            require_path(self.config.data.train)
        except DataError as error:
            raise _no_training_data(error) from None

    def _ngram_draft(self, saving: float) -> ModelDrafter | None:
        """An n-gram of the training data; None if making it takes longer than it saves, in seconds."""
        if saving < OPENING_SECONDS:
            return None
        try:
            corpus = prepare(self.config.data, self.config.tokenizer, tokenizer=self.tokenizer).train
        except DataError as error:
            raise _no_training_data(error) from None
        right_to_left = is_right_to_left(self.model)
        found = ngram_draft_model(corpus, self.model.vocabulary, right_to_left=right_to_left, seconds=saving)
        return None if found is None else ModelDrafter(found)

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

    def prompt_ids(self, prompts: Sequence[str], allow_unknown: bool = False) -> list[list[int]]:
        """The ids of prompts. Unknown tokens are refused unless they are allowed."""
        unknown = self.tokenizer.unknown
        rows: list[list[int]] = [self.tokenizer.encode(prompt).tolist() for prompt in prompts]
        for number, (prompt, ids) in enumerate(zip(prompts, rows, strict=True), start=1):
            if unknown in ids and not allow_unknown:
                parts = [part for part in prompt.split() if unknown in self.tokenizer.encode(part)]
                named = ", ".join(map(repr, parts[:3])) or "white space"
                raise DecodingError(
                    f"{'the prompt' if len(prompts) == 1 else f'prompt {number:,}'} has tokens that are not in the "
                    f"vocabulary, in {named}; remove them, or read them as <unk> with --allow-unknown"
                )
        return [self.in_model_order(ids) for ids in rows]

    def finished_text(self, generation: Generation, stop: Sequence[str]) -> GeneratedText:
        """The text of generated ids, up to a stop string."""
        text = self.tokenizer.decode(self.in_model_order(generation.ids))
        if is_right_to_left(self.model):
            text = text[max((text.rindex(one) + len(one) for one in stop if one in text), default=0) :]
        else:
            text = text[: min((text.index(one) for one in stop if one in text), default=len(text))]
        return GeneratedText(text, generation.log_prob, len(generation.ids), generation.finished)

    def in_model_order(self, ids: list[int]) -> list[int]:
        """From the order of the text to that of the model, or back."""
        return ids[::-1] if is_right_to_left(self.model) else ids

    def stop_condition(self, stop: Sequence[str]) -> Callable[[Sequence[int]], bool] | None:
        """Whether generated ids contain one of the stop strings."""
        if not stop:
            return None
        if not all(stop):
            raise ConfigError("a stop string is empty, so no text could be generated; remove it")
        longest = max(len(one) for one in stop)

        def done(ids: Sequence[int]) -> bool:
            # A token is at least a byte, a character at most four: the tail is long enough for any stop string.
            tail = self.tokenizer.decode(self.in_model_order(list(ids[-4 * longest - 4 :])))
            return any(one in tail for one in stop)

        return done

    @property
    def suppressed(self) -> list[int]:
        """Ids that are never generated: <unk>, padding of the vocabulary, and EOS if training never had one."""
        unknown = [] if self.tokenizer.unknown is None else [self.tokenizer.unknown]
        never_seen = [self.tokenizer.eos] if self.config.data.unit == "stream" else []
        without_text = range(self.tokenizer.vocabulary, self.model.vocabulary)  # of padded vocabularies
        return [*unknown, *never_seen, *without_text]


def _no_training_data(error: DataError) -> DecodingError:
    return DecodingError(
        f"an n-gram draft is counted in the training data, which cannot be read ({error}); use --draft self"
    )


@final
class TextData(PlainTextData[NeuralModel, TextRun], LikelihoodData[NeuralModel, TextRun]):
    """Text in which each token is predicted from those before it."""

    model_type = NeuralModel
    run_type: ClassVar[type[TextRun]] = TextRun
    sized_by_budget = True

    def batches(self, model: NeuralModel, config: RunConfig, reporter: Reporter) -> TrainingBatches:
        """By documents, by windows if the model has a context, else by lanes with a carried state."""
        settings, corpus = config.train, self.corpus
        length = settings.segment or model.segment
        rows = max(1, settings.batch_tokens // length)
        if corpus.unit == "documents":
            longest = model.context if model.context is not None else settings.segment
            return TrainingBatches(Documents(corpus, settings.batch_tokens, longest, config.seed), WholeSequences)
        if model.context is None:
            return TrainingBatches(
                Lanes(corpus, rows, length, config.seed, contiguous=model.contiguous), CarriedSegments
            )
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
