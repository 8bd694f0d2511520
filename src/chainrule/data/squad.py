"""Questions about long texts, each with the span that answers it, in the JSON format of SQuAD.

    {"data": [{"paragraphs": [{"context": …, "qas": [{"question": …, "id": …, "answers": [{"text": …,
    "answer_start": …}]}]}]}]}        (Rajpurkar et al., 2016; with "is_impossible", 2018)

A context may be longer than the context of a model, so it is split into overlapping passages. A passage answers a
question if it contains the whole answer; other passages have the target "no answer". Every token belongs to a word with
a character offset, so every span of tokens is a span of the text.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from chainrule.config import DataConfig
from chainrule.data.compression import open_bytes
from chainrule.data.corpus import Corpus
from chainrule.data.encoding import not_text
from chainrule.data.examples import paired, split_examples
from chainrule.data.parallel import PairedCorpus
from chainrule.data.text import find_files
from chainrule.data.windows import SlidingWindow
from chainrule.errors import DataError
from chainrule.tokenizers import Tokenizer, train_tokenizer

WORD = re.compile(r"\w+|[^\w\s]")
CONTEXTS_HELD, WORDS_HELD = 1 << 10, 1 << 18  # cached by a `PassageCutter`
NO_ANSWER = (0, 0)  # target of a passage without the answer


class Answer(NamedTuple):
    """A span of a context."""

    text: str
    start: int


class Question(NamedTuple):
    """A question, its context, and all correct answers; none if it is unanswerable."""

    question: str
    context: str
    answers: tuple[Answer, ...]
    name: str  # the id in the file


def read_squad(spec: str) -> list[Question]:
    """Read every question of a file, a folder or a glob."""
    found: list[Question] = []
    for path in find_files(spec)[0]:
        found += _questions(_read_json(path), repr(str(path)))
    if not found:
        raise DataError(f"{spec!r} contains no questions; give JSON in the format of SQuAD")
    return found


def _read_json(path: Path) -> Any:
    with open_bytes(path) as file:
        raw = file.read()
    where = repr(str(path))
    if 0 in raw:
        raise not_text(where, raw, offset=raw.index(0))
    try:
        return json.loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise not_text(f"line {line:,} of {where}", raw, error=error) from None
    except json.JSONDecodeError as error:
        raise DataError(f"line {error.lineno:,} of {where} is not valid JSON: {error.msg}; fix the file") from None
    except RecursionError:
        raise DataError(f"{where} is not valid JSON: it is nested too deeply; fix the file") from None


def _questions(content: Any, where: str) -> Iterator[Question]:
    for article, entry in enumerate(_list(content, "data", where)):
        for number, paragraph in enumerate(_list(entry, "paragraphs", f"article {article + 1} of {where}")):
            here = f"paragraph {number + 1} of article {article + 1} of {where}"
            context = _text(paragraph, "context", here)
            for asked in _list(paragraph, "qas", here):
                name = str(asked.get("id", "")) if isinstance(asked, dict) else ""
                label = f"question {name!r} in {here}"
                question = _text(asked, "question", label)
                given = [] if asked.get("is_impossible") else _list(asked, "answers", label)
                answers = tuple(_answer(one, context, label) for one in given)
                yield Question(question.strip(), context, answers, name)


def _answer(given: Any, context: str, where: str) -> Answer:
    text, start = _text(given, "text", where), given.get("answer_start")
    if not isinstance(start, int):
        raise DataError(f"{where} has an answer without answer_start; add its offset in characters of the context")
    if context[start : start + len(text)] != text:
        raise DataError(
            f"{where} has the answer {text!r:.40}, but at offset {start:,} the context is "
            f"{context[max(0, start) : start + len(text)]!r:.40}; correct answer_start"
        )
    bare = text.strip()
    return Answer(bare, start + text.index(bare)) if bare else Answer(text, start)


def _list(entry: Any, name: str, where: str) -> list[Any]:
    found = entry.get(name) if isinstance(entry, dict) else None
    if not isinstance(found, list):
        raise DataError(f"{where} has no list {name!r}; give JSON in the format of SQuAD")
    return found


def _text(entry: Any, name: str, where: str) -> str:
    found = entry.get(name) if isinstance(entry, dict) else None
    if not isinstance(found, str):
        raise DataError(f"{where} has no text {name!r}; give JSON in the format of SQuAD")
    return found


class TokenSpan(NamedTuple):
    """A token and the character span of its word."""

    id: int
    begin: int
    end: int


class Passage(NamedTuple):
    """A part of a context."""

    context: str
    tokens: tuple[TokenSpan, ...]

    def locate(self, answer: Answer) -> tuple[int, int] | None:
        """Return the target of an answer, its first and last token counted from 1; None unless all of it is inside."""
        end = answer.start + len(answer.text)
        inside = [
            number for number, token in enumerate(self.tokens, 1) if token.end > answer.start and token.begin < end
        ]
        if not inside or self.tokens[0].begin > answer.start or self.tokens[-1].end < end:
            return None
        return inside[0], inside[-1]

    def text(self, target: tuple[int, int]) -> str:
        """Return the text of a target."""
        first, last = target
        return self.context[self.tokens[first - 1].begin : self.tokens[last - 1].end]


class PassageCutter:
    """Splits texts into tokens with offsets, and contexts into passages."""

    def __init__(self, tokenizer: Tokenizer, *, length: int, stride: int) -> None:
        self.tokenizer, self.length, self.windows = tokenizer, length, SlidingWindow(length, stride)
        self._known: dict[str, list[int]] = {}  # token ids by word
        self._passages: dict[str, list[Passage]] = {}

    def tokens(self, text: str) -> list[TokenSpan]:
        """Tokenize word by word, so that the offset of every token is known, also of [UNK]."""
        found = []
        for match in WORD.finditer(text):
            word = match.group()
            if word not in self._known:
                if len(self._known) == WORDS_HELD:
                    self._known.clear()
                self._known[word] = self.tokenizer.encode(word).tolist()
            found += [TokenSpan(token, *match.span()) for token in self._known[word]]
        return found

    def passages(self, context: str) -> list[Passage]:
        """Of `length` tokens each, every `stride` tokens, up to the end."""
        if context not in self._passages:
            if len(self._passages) == CONTEXTS_HELD:  # of a stream of them, which may not end
                self._passages.clear()
            tokens = self.tokens(context)
            windows = self.windows.cut(0, max(1, len(tokens)))
            self._passages[context] = [Passage(context, tuple(tokens[one.begin : one.end])) for one in windows]
        return self._passages[context]

    def source(self, question: str, passage: Passage) -> list[int]:
        """Return the input of a model: question, EOS, passage."""
        asked = [token.id for token in self.tokens(question)]
        return [*asked, self.tokenizer.eos, *(token.id for token in passage.tokens)]


def cut_question(source: Sequence[int], separator: int, limit: int | None) -> list[int]:
    """Cut the question of a source at its end, so that question, separator and passage have at most `limit` tokens."""
    ids = list(source)
    if limit is None or len(ids) <= limit or separator not in ids:
        return ids
    edge = ids.index(separator)
    return ids[: max(0, edge - (len(ids) - limit))] + ids[edge:]


def cut_questions(pairs: PairedCorpus, separator: int, limit: int) -> tuple[PairedCorpus, int]:
    """Cut the questions of encoded sources to a limit; also return how many were cut."""
    rows = [np.asarray(row).tolist() for row in pairs.source.documents()]
    long = sum(len(row) > limit for row in rows)
    if not long:
        return pairs, 0
    cut = [cut_question(row, separator, limit) for row in rows]
    return PairedCorpus(Corpus.of_rows(cut, max(map(max, rows)) + 1), pairs.target), long


class PreparedQuestions(NamedTuple):
    """The encoded splits, and the held-out questions for evaluation."""

    tokenizer: Tokenizer
    cutter: PassageCutter
    train: PairedCorpus
    held_out: dict[str, PairedCorpus]
    questions: dict[str, list[Question]]  # of the held-out splits
    names: dict[str, str]
    warnings: tuple[str, ...]


def prepare_squad(
    config: DataConfig, tokenizer_spec: str, *, tokenizer: Tokenizer | None = None, seed: int = 0
) -> PreparedQuestions:
    """Read and encode all splits; the tokenizer is trained on the training data unless it is given.

    The examples of a question are all passages that answer it and `data.negatives` others.
    """
    examples, names, warnings = split_examples(config, read_squad)
    if tokenizer is None:
        train = examples["training"]
        texts = [text for one in train for text in (one.question, one.context)]
        tokenizer = train_tokenizer(
            tokenizer_spec, lambda: (" ".join(WORD.findall(text)) for text in dict.fromkeys(texts))
        )
    cutter = PassageCutter(tokenizer, length=config.passage_length, stride=config.passage_stride)
    encoded = {
        split: encode_questions(questions, cutter, negatives=config.negatives, seed=seed)
        for split, questions in examples.items()
    }
    return PreparedQuestions(
        tokenizer,
        cutter,
        encoded.pop("training"),
        encoded,
        {split: questions for split, questions in examples.items() if split != "training"},
        names,
        warnings,
    )


def encode_questions(
    questions: Sequence[Question], cutter: PassageCutter, *, negatives: int, seed: int
) -> PairedCorpus:
    """Encode questions with passages as sources and answer positions as targets."""
    chosen = list(chosen_passages(questions, cutter, negatives=negatives, seed=seed))
    if not chosen:
        raise DataError("the contexts of the questions contain no words; check the data")
    sources, targets = zip(*chosen, strict=True)
    return paired(sources, targets, cutter.tokenizer.vocabulary, cutter.length + 1)


def chosen_passages(
    questions: Sequence[Question], cutter: PassageCutter, *, negatives: int, seed: int
) -> Iterator[tuple[list[int], tuple[int, int]]]:
    """Yield sources and targets: all passages with the answer, and a random sample of those without."""
    rng = random.Random(seed)
    for one in questions:
        passages = [passage for passage in cutter.passages(one.context) if passage.tokens]
        placed = [(passage, _first_place(passage, one.answers)) for passage in passages]
        answering = [(passage, place) for passage, place in placed if place is not None]
        others = [passage for passage, place in placed if place is None]
        for passage, place in answering:
            yield cutter.source(one.question, passage), place
        for passage in rng.sample(others, min(negatives, len(others))):
            yield cutter.source(one.question, passage), NO_ANSWER


def _first_place(passage: Passage, answers: Sequence[Answer]) -> tuple[int, int] | None:
    return next((place for answer in answers if (place := passage.locate(answer)) is not None), None)
