"""Runs of readers: what is the answer, and is it here?"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from chainrule.data.parallel import PairedCorpus
from chainrule.data.squad import Answer, Cutter, Passage, Question, encode_questions, read_squad
from chainrule.decoding.structured import Span, best_spans
from chainrule.errors import ConfigError, DataError
from chainrule.evaluation.reading import ReadingScore, reading_score
from chainrule.models.reader import SpanReader
from chainrule.runs.predicting import PredictingRun, Said, in_groups
from chainrule.types import Sequences


class Answered(NamedTuple):
    """The best answer that was found in a text."""

    text: str
    probability: float  # of this answer, among all answers in the text and none
    nowhere: float  # of there being no answer in the text
    start: int  # in characters of the text; −1 where the text has no words


NOTHING = Answered("", 0.0, 1.0, -1)


@dataclass(frozen=True, kw_only=True)
class ReadingRun(PredictingRun):
    """A model of answers given questions and passages.

    A long text is read in passages. If at most one of them holds the answer, the odds of a span in passage i against no
    answer anywhere are P_i(span) / P_i(none); so spans of all passages are compared by these odds, and

        P(span) = odds(span) / (1 + Σ_i o_i),    P(nowhere) = 1 / (1 + Σ_i o_i),    o_i = (1 − P_i(none)) / P_i(none)
    """

    does = "answers questions"

    model: SpanReader

    def cutter(self) -> Cutter:
        """What cuts texts as in training."""
        data = self.config.data
        return Cutter(self.tokenizer, length=data.passage, stride=data.passage_stride)

    def answer(self, question: str, context: str) -> Answered:
        """The likeliest answer to a question in a text of any length."""
        return self._answer(question, context, self.cutter())

    def _answer(self, question: str, context: str, cutter: Cutter) -> Answered:
        passages = [passage for passage in cutter.passages(context) if passage.tokens]
        if not passages:
            return NOTHING
        return self._best(passages, self.spans([cutter.source(question, passage) for passage in passages]))

    def _best(self, passages: Sequence[Passage], spans: Sequence[Span]) -> Answered:
        passage, span = max(zip(passages, spans, strict=True), key=lambda found: found[1].log_odds)
        nothing = [min(one.log_no_answer, -1e-12) for one in spans]  # a probability of 1 would leave no odds at all
        total = [math.log(-math.expm1(nats)) - nats for nats in nothing]  # log o_i
        among = torch.tensor([0.0, *total], dtype=torch.float64).logsumexp(0).item()
        begin = passage.tokens[span.first - 1].begin
        text = passage.text((span.first, span.last))
        return Answered(text, math.exp(min(0.0, span.log_odds - among)), math.exp(-among), begin)

    def spans(self, sources: Sequence[Sequence[int]], *, progress: Callable[[float], None] | None = None) -> list[Span]:
        """The best span of each encoded source."""
        limit = self.model.source_context
        if limit is not None and max(map(len, sources)) > limit:
            raise DataError(
                f"a question and its passage have {max(map(len, sources))} tokens, and the model reads {limit}; ask "
                "a shorter question, or train with a smaller data.passage"
            )

        def compute(group: Sequence[int]) -> list[Span]:
            return best_spans(self.model, Sequences.pack([sources[row] for row in group], self.model.device))

        return in_groups([len(row) for row in sources], compute, progress=progress)

    def said(self, lines: Iterable[str], *, search: str | None = None, beam: int = 5) -> Iterator[Said | None]:
        if search is not None:
            raise ConfigError("a reader follows its likeliest starts to their ends; leave out the search")
        cutter = self.cutter()
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                yield None
                continue
            found = self._answer(*_asked(line, number), cutter)
            text = " ".join(found.text.split())
            yield Said(f"{text}\t{found.probability:.4f}\t{found.nowhere:.4f}", found._asdict())

    def score(self, data: str, *, progress: Callable[[float], None] | None = None) -> ReadingScore:
        questions, negatives = read_squad(data), self.config.data.negatives
        passages = encode_questions(questions, self.cutter(), negatives=negatives, seed=0)
        result = self.compare(questions, passages, progress=progress)
        self.keep_score(result, passages.target, data)
        return result

    def compare(
        self, questions: Sequence[Question], passages: PairedCorpus, *, progress: Callable[[float], None] | None = None
    ) -> ReadingScore:
        """The score of the answers to some questions, and of telling which of some passages have one."""
        cutter = self.cutter()
        # A passage is read for every question about its context: what can be known of it is found out once.
        self.model.precompute(
            cutter.source(one.question, passage)
            for one in questions
            for passage in cutter.passages(one.context)
            if passage.tokens
        )
        found = []
        for number, one in enumerate(questions, start=1):
            text, _, _, start = self._answer(one.question, one.context, cutter)
            found.append(Answer(text, start))
            if progress is not None:
                progress(0.9 * number / len(questions))
        sources, targets = zip(*passages.ids(), strict=True)
        told = [span.log_no_answer < math.log(0.5) for span in self.spans([source.tolist() for source in sources])]
        return reading_score(questions, found, here=[bool(target[0]) for target in targets], told=told)


def _asked(line: str, number: int) -> tuple[str, str]:
    """The question and the text of a line: JSON, or two columns by tab."""
    if line.lstrip().startswith("{"):
        try:
            record: Any = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"line {number} is not valid JSON: {error.msg}; mend it") from None
        given = record.get("question"), record.get("context", record.get("passage"))
        if not all(isinstance(text, str) for text in given):
            raise DataError(f'line {number} lacks a question or a context; write {{"question": …, "context": …}}')
        return given
    question, tab, context = line.partition("\t")
    if not tab:
        raise DataError(f"line {number} has no tab; give a question, a tab and the text, or a line of JSON")
    return question.strip(), context
