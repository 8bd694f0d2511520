"""Runs of text: what comes next?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from chainrule.compose.reverse import reversed_corpus
from chainrule.config import DataConfig, RunConfig
from chainrule.data.corpus import Corpus, Report, encode_file, prepare
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
from chainrule.interface.base import AutoregressiveModel, Model
from chainrule.interface.capabilities import BlockPredictor, is_right_to_left
from chainrule.models.ngram import NGram
from chainrule.runs.base import SequenceRun, Splits, TokenRun
from chainrule.training.checkpoint import RunFolder
from chainrule.training.loop import Outcome

SURE_END = 16
"""Tokens at the end of a text that, where it holds them twice, say more about what comes than an n-gram does."""


class Text(NamedTuple):
    """A generated text."""

    text: str
    log_prob: float  # nats, by the model's own distribution, of what was generated
    tokens: int
    finished: str  # "eos", "stop" or "length"


@dataclass(frozen=True, kw_only=True)
class TextRun(TokenRun, SequenceRun):
    """A model of texts, with its vocabulary."""

    does = "writes text"
    use = "chainrule generate {run} --prompt …"

    @classmethod
    def of(cls, folder: RunFolder, config: RunConfig, model: Model, outcome: Outcome | None) -> Self:
        assert isinstance(model, AutoregressiveModel)
        return cls(folder=folder, config=config, model=model, outcome=outcome, tokenizer=folder.tokenizer())

    def corpus(
        self, text: str | None, data: str | None, source: str | None = None
    ) -> tuple[Corpus, Corpus | None, str]:
        if (text is None) == (data is None):
            raise ConfigError("give either a text or data to score, and not both")
        if source is not None:
            raise ConfigError(f"{str(self.path)!r} is a model of one text and has no use for a source; leave it out")
        if text is not None:
            unit = self.config.data.unit
            corpus = Corpus.of_text(text, self.tokenizer, unit="documents" if unit == "documents" else "stream")
        else:
            assert data is not None
            corpus = encode_file(self.config.data, self.tokenizer, data)
        return reversed_corpus(corpus) if is_right_to_left(self.model) else corpus, None, data or "text"

    @property
    def vocabulary(self) -> object:
        return self.tokenizer.kind, self.tokenizer.to_json()

    def splits(self, config: DataConfig, progress: Report | None = None) -> Splits:
        prepared = prepare(config, self.config.tokenizer, tokenizer=self.tokenizer, progress=progress)
        return Splits(prepared.train, prepared.valid, prepared.test)

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
    ) -> list[Text]:
        """Continue a prompt `num` times: sampled (see `decoding.Sampling` for the settings), or by beam search.

        A `draft` makes sampling faster and changes nothing else (see `drafter`).
        """
        if beam is None:
            words: dict[str, Any] = {"length": length, "num": num, "seed": seed, "stop": stop, **sampling}
            texts = dict(self.stream(prompt, allow_unknown=allow_unknown, draft=draft, **words))
            return [texts[row] for row in range(num)]
        if draft is not None:
            raise ConfigError("beam search follows many texts and needs no draft; leave out one of the two")
        if sampling:
            raise ConfigError(f"beam search does not sample; leave out {', '.join(sorted(sampling))}")
        [found] = beam_search(
            self.autoregressive,
            [self._prompt(prompt, allow_unknown)],
            width=max(beam, num),
            num=num,
            length=length,
            eos=self.tokenizer.eos,
            suppress=self._suppressed,
            length_penalty=length_penalty,
            stop=self._stopper(stop),
        )
        return [self._text(one, stop) for one in found]

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
    ) -> Iterator[tuple[int, Text]]:
        """As `generate`, each text as soon as it is finished; `show` receives the first one's as it grows."""
        settings = Sampling.parse(sampling)
        ids = self._prompt(prompt, allow_unknown)
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
            stop=self._stopper(stop),
            draft=None if draft is None else self.drafter(draft),
        ):
            for token in tokens:
                log_probs[token.row] += token.log_prob
                if token.finished != "eos":
                    rows[token.row].append(token.id)
                done = None
                if token.finished is not None:
                    done = self._text(Generation(rows[token.row], log_probs[token.row], token.finished), stop)
                if show is not None and token.row == 0:
                    shown = self._show(rows[0], done, shown, show, stop)
                if done is not None:
                    yield token.row, done

    def drafter(self, draft: TextRun | str) -> Drafter:
        """Who guesses ahead: a smaller run; "ngram", counted in the training data; or "self", its text or plan."""
        if draft == "self":
            return LookaheadDrafter(self.autoregressive) if isinstance(self.model, BlockPredictor) else LookupDrafter()
        if draft == "ngram":
            return FallbackDrafter(LookupDrafter(shortest=SURE_END), ModelDrafter(self._counted_draft()))
        if isinstance(draft, str):
            raise ConfigError(f"the draft is {draft!r}; give a run, 'ngram' or 'self'")
        one_tokenizer = draft.tokenizer.to_json() == self.tokenizer.to_json()
        if not one_tokenizer or is_right_to_left(draft.model) != is_right_to_left(self.model):
            raise DecodingError(
                f"{str(draft.path)!r} has another {'direction' if one_tokenizer else 'vocabulary'} than "
                f"{str(self.path)!r}, so it cannot draft for it; give a run with the same tokenizer and direction"
            )
        return ModelDrafter(draft.autoregressive)

    def _counted_draft(self) -> NGram:
        try:
            corpus = prepare(self.config.data, self.config.tokenizer, tokenizer=self.tokenizer).train
        except DataError as error:
            raise DecodingError(
                f"an n-gram draft is counted in the training data, which cannot be read ({error}); draft with self"
            ) from None
        return ngram_draft_model(corpus, self.model.vocabulary, right_to_left=is_right_to_left(self.model))

    def _show(
        self, ids: list[int], done: Text | None, shown: int, show: Callable[[str], None], stop: Sequence[str]
    ) -> int:
        """Print what is certain: not half a character, and not what may yet become a stop string.

        A text that is written from its end is certain when it is done.
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

    def _prompt(self, prompt: str, allow_unknown: bool) -> list[int]:
        """The ids of a prompt. What the model has never seen would be read as nothing in particular: ask first."""
        unknown = self.tokenizer.unknown
        ids: list[int] = self.tokenizer.encode(prompt).tolist()
        if unknown in ids and not allow_unknown:
            parts = [part for part in prompt.split() if unknown in self.tokenizer.encode(part)]
            named = ", ".join(map(repr, parts[:3])) or "white space"
            raise DecodingError(
                f"the prompt holds what the vocabulary lacks, in {named}; "
                "leave it out, or let it be read as <unk> with --allow-unknown"
            )
        return self._in_reading_order(ids)

    def _text(self, generation: Generation, stop: Sequence[str]) -> Text:
        text = self.tokenizer.decode(self._in_reading_order(generation.ids))
        if is_right_to_left(self.model):
            text = text[max((text.rindex(one) + len(one) for one in stop if one in text), default=0) :]
        else:
            text = text[: min((text.index(one) for one in stop if one in text), default=len(text))]
        return Text(text, generation.log_prob, len(generation.ids), generation.finished)

    def _in_reading_order(self, ids: list[int]) -> list[int]:
        """From the order of the text to that of the model, or back."""
        return ids[::-1] if is_right_to_left(self.model) else ids

    def _stopper(self, stop: Sequence[str]) -> Callable[[Sequence[int]], bool] | None:
        if not stop:
            return None
        longest = max(len(one) for one in stop)

        def done(ids: Sequence[int]) -> bool:
            # A token is at least a byte, a character at most four: the tail is long enough for any stop string.
            tail = self.tokenizer.decode(self._in_reading_order(list(ids[-4 * longest - 4 :])))
            return any(one in tail for one in stop)

        return done

    @property
    def _suppressed(self) -> list[int]:
        """An unknown token is no text, and a model of one long stream has never seen an end."""
        unknown = [] if self.tokenizer.unknown is None else [self.tokenizer.unknown]
        never_seen = [self.tokenizer.eos] if self.config.data.unit == "stream" else []
        without_text = range(self.tokenizer.vocabulary, self.model.vocabulary)  # of padded vocabularies
        return [*unknown, *never_seen, *without_text]
