"""A run that can be used: how likely is this text, what comes next, can it be trusted?"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from chainrule.card import card
from chainrule.compose import build
from chainrule.compose.composite import reads_backwards
from chainrule.compose.reverse import turned_corpus
from chainrule.config import DataConfig, RunConfig
from chainrule.data.cleaning import sentence
from chainrule.data.corpus import Corpus, encode_file, prepare
from chainrule.data.parallel import PairedCorpus, PairTokenizers, encode_pairs
from chainrule.data.source import normalisation_of
from chainrule.decoding import (
    Alignment,
    Generation,
    Sampling,
    Search,
    Translated,
    Translator,
    agreed,
    beam_search,
    stream,
    streamed,
)
from chainrule.decoding.drafts import Drafter, EitherDrafter, LookupDrafter, ModelDrafter, counted_draft
from chainrule.decoding.plan_drafts import PlanDrafter
from chainrule.decoding.sentences import LONGEST, WINDOW
from chainrule.errors import ConfigError, DataError, DecodingError, RunError
from chainrule.evaluation.likelihood import Score, TokenScore, protocol_for, score, token_scores
from chainrule.evaluation.translation import TranslationScore, score_translations
from chainrule.evaluation.verify import Finding, verify
from chainrule.evaluation.verify_parallel import verify_parallel
from chainrule.models.base import AutoregressiveModel, CountModel
from chainrule.models.capabilities import Plans
from chainrule.models.conditional import Conditional, ParallelModel
from chainrule.models.ngram import NGram
from chainrule.tokenizers import Tokenizer
from chainrule.training.checkpoint import RunFolder
from chainrule.training.loop import Outcome
from chainrule.types import Sequences

SURE_END = 16
"""Tokens at the end of a text that, where it holds them twice, say more about what comes than an n-gram does."""


class Text(NamedTuple):
    """A generated text."""

    text: str
    log_prob: float  # nats, by the model's own distribution, of what was generated
    tokens: int
    finished: str  # "eos", "stop" or "length"


@dataclass(frozen=True)
class Run:
    """A trained model with its vocabulary and the record of how it came to be."""

    folder: RunFolder
    config: RunConfig
    tokenizer: Tokenizer
    model: AutoregressiveModel | ParallelModel
    outcome: Outcome | None = None  # of the training that gave this object
    source_tokenizer: Tokenizer | None = None  # of a run that translates

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def autoregressive(self) -> AutoregressiveModel:
        """The model, as one that has a next token."""
        if isinstance(self.model, ParallelModel):
            raise DecodingError(
                f"{str(self.path)!r} is a {self.config.family}, which writes all tokens at once and has no next one; "
                "give a run of an autoregressive family, such as transformer"
            )
        return self.model

    # How likely?

    def score(
        self,
        text: str | None = None,
        *,
        data: str | None = None,
        source: str | None = None,
        stride: int | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> Score:
        """Score a text, or a file or any other data spec. The result is also kept in scores.jsonl.

        A run that translates scores a text given its `source`, a file given the file of its sources, or data of pairs.
        """
        corpus, given, name = self.corpus(text, data, source)
        protocol = protocol_for(self.model, corpus, stride=stride)
        result = score(self.model, corpus, protocol, source=given, progress=progress)
        self.keep_score(result, corpus, name)
        return result

    def keep_score(self, result: Score, corpus: Corpus, name: str, *, split: str | None = None) -> None:
        """Add a line to scores.jsonl: the numbers, their protocol, and which data they are about.

        A run that may be read but not written, someone else's say, can still be scored.
        """
        if os.access(self.path, os.W_OK):
            about = {"data": name, "split": split, "fingerprint": corpus.fingerprint}
            self.folder.append("scores.jsonl", {**about, **result.model_dump(mode="json")})

    def token_scores(
        self,
        text: str | None = None,
        *,
        data: str | None = None,
        source: str | None = None,
        stride: int | None = None,
        alternatives: int = 5,
    ) -> list[TokenScore]:
        """Each token's surprisal and what the model expected instead."""
        model = self.autoregressive
        corpus, given, _ = self.corpus(text, data, source)
        protocol = protocol_for(model, corpus, stride=stride)
        found = token_scores(model, corpus, protocol, source=given, alternatives=alternatives)
        return found[::-1] if reads_backwards(self.model) else found

    def corpus(
        self, text: str | None, data: str | None, source: str | None = None
    ) -> tuple[Corpus, Corpus | None, str]:
        """What to score, what it is given where the run translates, and what to call it."""
        if (text is None) == (data is None):
            raise ConfigError("give either a text or data to score, and not both")
        given = None
        if isinstance(self.model, Conditional):
            pairs = self._pairs(text, data, source)
            corpus, given = pairs.target, pairs.source
        elif source is not None:
            raise ConfigError(f"{str(self.path)!r} is a model of one text and has no use for a source; leave it out")
        elif text is not None:
            unit = self.config.data.unit
            corpus = Corpus.of_text(text, self.tokenizer, unit="documents" if unit == "documents" else "stream")
        else:
            assert data is not None
            corpus = encode_file(self.config.data, self.tokenizer, data)
        return turned_corpus(corpus) if reads_backwards(self.model) else corpus, given, data or "text"

    def _pairs(self, text: str | None, data: str | None, source: str | None) -> PairedCorpus:
        if text is None:
            assert data is not None
            return encode_pairs(self.config.data, self.pair_tokenizers(), data, source)
        if source is None:
            raise ConfigError("a translation is as likely as its source makes it; give the source of the text, too")
        return PairedCorpus.of_pair(self._sentence(source), self._sentence(text), self.pair_tokenizers())

    def pair_tokenizers(self) -> PairTokenizers:
        """The vocabularies of both sides, of a run that translates."""
        if self.source_tokenizer is None:
            raise RunError(
                f"{str(self.path)!r} is a {self.config.family}, which translates nothing; "
                "give a run of a translation family (chainrule models lists them)"
            )
        return PairTokenizers(self.source_tokenizer, self.tokenizer)

    def encode_source(self, texts: Sequence[str]) -> Sequences:
        """Sources as a model takes them: normalised as in training, each closed by EOS. An empty text is EOS alone."""
        tokenizer = self.pair_tokenizers().source
        return Sequences.pack([[*tokenizer.encode(self._sentence(text)), tokenizer.eos] for text in texts])

    def _sentence(self, text: str) -> str:
        return sentence(text, normalisation_of(self.config.data))

    # What comes next?

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
        draft: Run | str | None = None,
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
        draft: Run | str | None = None,
        show: Callable[[str], None] | None = None,
        **sampling: Any,
    ) -> Iterator[tuple[int, Text]]:
        """As `generate`, each text as soon as it is finished; `show` receives the first one's as it grows."""
        settings = Sampling.parse(sampling)
        ids = self._prompt(prompt, allow_unknown)
        rows: list[list[int]] = [[] for _ in range(num)]
        log_probs = [0.0] * num
        shown = 0
        for tokens in stream(
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

    def drafter(self, draft: Run | str) -> Drafter:
        """Who guesses ahead: a smaller run; "ngram", counted in the training data; or "self", its text or plan."""
        if draft == "self":
            return PlanDrafter(self.autoregressive) if isinstance(self.model, Plans) else LookupDrafter()
        if draft == "ngram":
            return EitherDrafter(LookupDrafter(shortest=SURE_END), ModelDrafter(self._counted_draft()))
        if isinstance(draft, str):
            raise ConfigError(f"the draft is {draft!r}; give a run, 'ngram' or 'self'")
        one_tokenizer = draft.tokenizer.to_json() == self.tokenizer.to_json()
        if not one_tokenizer or reads_backwards(draft.model) != reads_backwards(self.model):
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
        return counted_draft(corpus, self.model.vocabulary, backwards=reads_backwards(self.model))

    def _show(
        self, ids: list[int], done: Text | None, shown: int, show: Callable[[str], None], stop: Sequence[str]
    ) -> int:
        """Print what is certain: not half a character, and not what may yet become a stop string.

        A text that is written from its end is certain when it is done.
        """
        if done is None and reads_backwards(self.model):
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
        if isinstance(self.model, Conditional):
            raise DecodingError(f"{str(self.path)!r} translates and writes nothing of its own; use chainrule translate")
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
        if reads_backwards(self.model):
            text = text[max((text.rindex(one) + len(one) for one in stop if one in text), default=0) :]
        else:
            text = text[: min((text.index(one) for one in stop if one in text), default=len(text))]
        return Text(text, generation.log_prob, len(generation.ids), generation.finished)

    def _in_reading_order(self, ids: list[int]) -> list[int]:
        """From the order of the text to that of the model, or back."""
        return ids[::-1] if reads_backwards(self.model) else ids

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

    # What is it in the other language?

    def translate(
        self,
        texts: str | Iterable[str | Translated],
        search: Search | None = None,
        *,
        batch: int = 32,
        longest: int = LONGEST,
        copy_unknown: bool = False,
        agree_with: Run | None = None,
        window: int = WINDOW,
    ) -> Iterator[list[Translated]]:
        """The best translations of each text, best first, in the order of the texts; any number of texts may come.

        Empty texts stay empty, and texts of more than `longest` tokens go through as they are: `finished` says so.
        With `agree_with`, what both runs find is ranked by both, say one that writes from left to right and one that
        writes from right to left.
        """
        search, translator = search or Search(), self.translator()
        if agree_with is None:

            def translate(held: Sequence[str]) -> list[list[Translated]]:
                return translator.translate(held, search, batch=batch, longest=longest, copy_unknown=copy_unknown)
        else:
            if copy_unknown:
                raise ConfigError("two runs cannot agree on what only one of them has copied; leave out copy_unknown")
            other = agree_with.translator()

            def translate(held: Sequence[str]) -> list[list[Translated]]:
                return agreed(translator, other, held, search, batch=batch, longest=longest)

        return streamed([texts] if isinstance(texts, str) else texts, translate, window=window)

    def score_translations(
        self,
        sources: Sequence[str],
        references: Sequence[str],
        search: Search | None = None,
        *,
        batch: int = 32,
        target_language: str | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> TranslationScore:
        """BLEU, chrF and exact match of translations of the sources, and how likely the references are."""
        return score_translations(
            self.translator(),
            sources,
            references,
            search or Search(),
            target_language=target_language or self.config.data.target_language or "",
            batch=batch,
            progress=progress,
        )

    def align(self, source: str, target: str | None = None, *, beam: int = 5) -> Alignment:
        """Where each token of a translation, the model's own unless one is given, has looked in the source."""
        if target is None:
            [[best, *_]] = self.translate(source, Search(beam=beam))
            if best.is_carried:
                raise DecodingError(f"the source is {best.finished}; give a sentence that the model can translate")
            target = best.text
        return self.translator().align(source, target)

    def translator(self) -> Translator:
        """The model with the vocabularies of both sides, and texts normalised as in training."""
        source, target = self.pair_tokenizers()
        return Translator(self.model, source, target, self._sentence)

    # Can it be trusted, and what is it?

    def verify(self, *, seed: int = 0) -> list[Finding]:
        """The checks of every family, on this very model."""
        if isinstance(self.model, ParallelModel):
            return verify_parallel(self.model, seed=seed)
        return verify(self.model, seed=seed)

    def info(self) -> dict[str, Any]:
        """What the run is, in plain values."""
        scores = self.folder.records("scores.jsonl")
        metrics = [record for record in self.folder.records("metrics.jsonl") if "loss" in record]
        last = metrics[-1] if metrics else {}
        return {
            "path": str(self.path),
            "family": self.config.family,
            "summary": type(self.model).summary(),
            "parameters": parameters(self.model),
            "vocabulary": self.model.vocabulary,
            "context": self.model.context,
            "reach": self.model.reach if isinstance(self.model, AutoregressiveModel) else None,
            "tokenizer": self.config.tokenizer,
            "tokenizer_note": self.tokenizer.note,
            **self._about_pairs(),
            "data": self.config.data.train,
            "steps": last.get("step"),
            "tokens": last.get("tokens"),
            "seconds": last.get("seconds"),
            "validation": next((one for one in reversed(scores) if one.get("split") == "validation"), None),
            "test": next((one for one in reversed(scores) if one.get("split") == "test"), None),
        }

    def _about_pairs(self) -> dict[str, Any]:
        """What a run that translates has more to tell."""
        if self.source_tokenizer is None:
            return {}
        return {
            "source": self.config.data.source,
            "distil_from": self.config.data.distil_from,
            "source_vocabulary": self.source_tokenizer.vocabulary,
            "source_tokenizer": self.config.source_tokenizer or self.config.tokenizer,
            "cleaning": self.folder.cleaning(),
            "bleu": next((one for one in reversed(self.folder.records("metrics.jsonl")) if "valid_bleu" in one), None),
        }

    def card(self) -> str:
        """The run in prose, for card.md."""
        return card(self.path.name, self.info())


def parameters(model: torch.nn.Module) -> int:
    """Learned numbers: weights of networks, probabilities of tables."""
    tables = [buffer for part in model.modules() if isinstance(part, CountModel) for buffer in part.buffers()]
    return sum(x.numel() for x in (*model.parameters(), *tables) if x.is_floating_point())


def load(path: str | Path, *, device: str = "auto", checkpoint: str = "best") -> Run:
    """Open a run."""
    folder = RunFolder(Path(path))
    config = folder.config()
    tokenizer = folder.tokenizer()
    model = build(config.family, config.model)
    source_tokenizer = folder.source_tokenizer() if isinstance(model, Conditional) else None
    folder.read_weights(model, checkpoint)
    model = model.to(choose_device(device)).eval()
    return Run(folder, config, tokenizer, model, source_tokenizer=source_tokenizer)


def adopt(path: str | Path, form: str, out: str | Path) -> Run:
    """Make a run of a model that another tool has trained: `hf`, a GPT-2 folder, or `arpa`, an n-gram file."""
    from chainrule.interop.exchange import import_arpa, import_huggingface

    name, model, tokenizer = (import_huggingface if form == "hf" else import_arpa)(Path(path))
    folder = RunFolder(Path(out))
    folder.require_free()
    settings = model.config.model_dump(mode="json", exclude_none=True)
    data = DataConfig(train=f"imported from {path}", unit="stream")
    config = RunConfig(family=name, tokenizer=tokenizer.kind, data=data, model=settings)
    folder.lay_out(config, tokenizer)
    folder.write_weights(model)
    run = Run(folder, config, tokenizer, model.eval())
    folder.write_card(run.card())
    return run


def choose_device(name: str) -> torch.device:
    """`auto` is the fastest that is there: cuda, then mps, then cpu."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):
        raise ConfigError(f"device {name!r} cannot be used here; choose auto, cpu, cuda or mps") from None
    return device
