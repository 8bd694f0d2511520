"""Answers: a span of a passage for each question."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch

from chainrule.config import RunConfig
from chainrule.data.parallel import PairedCorpus
from chainrule.data.squad import (
    Answer,
    Passage,
    PassageCutter,
    PreparedQuestions,
    Question,
    cut_question,
    cut_questions,
    encode_questions,
    prepare_squad,
    read_squad,
)
from chainrule.decoding.structured import Span, best_spans
from chainrule.errors import ConfigError, DataError
from chainrule.evaluation.answers import AnswerScore, answer_score
from chainrule.models.reader import SpanReader
from chainrule.tasks.base import Task, refuse_pairs
from chainrule.tasks.examples import (
    ExampleData,
    LinePrediction,
    PredictionRun,
    embedder_settings,
    encoder_tokenizer,
    in_groups,
)
from chainrule.tasks.training_data import TrainingBatches
from chainrule.training.checkpoint import RunFolder
from chainrule.training.progress import Fraction, Reporter, shown_fraction
from chainrule.types import Sequences

# Runs


class PredictedAnswer(NamedTuple):
    """The best answer in a text."""

    text: str
    probability: float  # of this answer among all answers in the text and none
    nowhere: float  # probability that the text has no answer
    start: int  # in characters of the text; −1 if the text has no words
    cut: bool = False  # whether the question was longer than the encoder's context and was cut


NO_TEXT = PredictedAnswer("", 0.0, 1.0, -1)


@dataclass(frozen=True, kw_only=True, repr=False)
class AnswerRun(PredictionRun[SpanReader]):
    """A model of answers given questions and passages.

    A long text is read in passages. If at most one of them has the answer, the odds of a span in passage i against no
    answer anywhere are P_i(span) / P_i(none). So spans of all passages are compared by these odds, and

        P(span) = odds(span) / (1 + Σ_i o_i),    P(nowhere) = 1 / (1 + Σ_i o_i),    o_i = (1 − P_i(none)) / P_i(none)
    """

    model_type = SpanReader
    does = "answers questions"

    def cutter(self) -> PassageCutter:
        """Cuts texts into passages as in training."""
        data = self.config.data
        return PassageCutter(self.tokenizer, length=data.passage_length, stride=data.passage_stride)

    def answer(self, question: str, context: str) -> PredictedAnswer:
        """The most probable answer to a question in a text of any length."""
        return self._answer(question, context, self.cutter())

    def _answer(self, question: str, context: str, cutter: PassageCutter) -> PredictedAnswer:
        passages = [passage for passage in cutter.passages(context) if passage.tokens]
        if not passages:
            return NO_TEXT
        sources = [cutter.source(question, passage) for passage in passages]
        limit = self.model.source_context
        cut = limit is not None and max(map(len, sources)) > limit
        return self._best(passages, self.spans(sources))._replace(cut=cut)

    def _best(self, passages: Sequence[Passage], spans: Sequence[Span]) -> PredictedAnswer:
        passage, span = max(zip(passages, spans, strict=True), key=lambda found: found[1].log_odds)
        nothing = [min(one.log_no_answer, -1e-12) for one in spans]  # a probability of 1 would leave no odds at all
        total = [math.log(-math.expm1(nats)) - nats for nats in nothing]  # log o_i
        among = torch.tensor([0.0, *total], dtype=torch.float64).logsumexp(0).item()
        begin = passage.tokens[span.first - 1].begin
        text = passage.text((span.first, span.last))
        return PredictedAnswer(text, math.exp(min(0.0, span.log_odds - among)), math.exp(-among), begin)

    def spans(self, sources: Sequence[Sequence[int]], *, progress: Callable[[float], None] | None = None) -> list[Span]:
        """The best span of each encoded source; questions are cut to the context of the encoder."""
        sources = [self._fitted(source) for source in sources]

        def compute(group: Sequence[int]) -> list[Span]:
            return best_spans(self.model, Sequences.pack([sources[row] for row in group], device=self.model.device))

        return in_groups([len(row) for row in sources], compute, progress=progress)

    def _fitted(self, source: Sequence[int]) -> list[int]:
        return cut_question(source, self.tokenizer.eos, self.model.source_context)

    def predict_lines(
        self, lines: Iterable[str], *, search: str | None = None, beam: int = 5
    ) -> Iterator[LinePrediction | None]:
        if search is not None:
            raise ConfigError("answers are found by one search only; remove --search")
        cutter = self.cutter()
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                yield None
                continue
            found = self._answer(*_question_and_context(line, number), cutter)
            text = " ".join(found.text.split())
            yield LinePrediction(f"{text}\t{found.probability:.4f}\t{found.nowhere:.4f}", found._asdict())

    def score(self, data: str, *, progress: Fraction | bool | None = True) -> AnswerScore:
        questions, negatives = read_squad(data), self.config.data.negatives
        passages = encode_questions(questions, self.cutter(), negatives=negatives, seed=0)
        with shown_fraction(progress, "scoring") as report:
            result = self.score_questions(questions, passages, progress=report)
        self.keep_score(result, passages.target, data)
        return result

    def score_questions(
        self, questions: Sequence[Question], passages: PairedCorpus, *, progress: Callable[[float], None] | None = None
    ) -> AnswerScore:
        """The score of the answers, and of telling which passages have one."""
        cutter = self.cutter()
        # Every question about a context reads the same passages, so a frozen encoder's output is computed once.
        self.model.precompute(
            self._fitted(cutter.source(one.question, passage))
            for one in questions
            for passage in cutter.passages(one.context)
            if passage.tokens
        )
        found = []
        for number, one in enumerate(questions, start=1):
            answer = self._answer(one.question, one.context, cutter)
            found.append(Answer(answer.text, answer.start))
            if progress is not None:
                progress(0.9 * number / len(questions))
        sources, targets = zip(*passages.ids(), strict=True)
        told = [span.log_no_answer < math.log(0.5) for span in self.spans([source.tolist() for source in sources])]
        return answer_score(questions, found, answerable=[bool(target[0]) for target in targets], predicted=told)


def _question_and_context(line: str, number: int) -> tuple[str, str]:
    """The question and the text of an input line: JSON, or two columns separated by a tab."""
    if line.lstrip().startswith("{"):
        try:
            record: Any = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"line {number} is not valid JSON: {error.msg}; correct it") from None
        given = record.get("question"), record.get("context", record.get("passage"))
        if not all(isinstance(text, str) for text in given):
            raise DataError(f'line {number} has no question or no context; use {{"question": …, "context": …}}')
        return given
    question, tab, context = line.partition("\t")
    if not tab:
        raise DataError(f"line {number} has no tab; give a question, a tab and the text, or a line of JSON")
    return question.strip(), context


# Data


@final
class AnswerData(ExampleData[SpanReader, AnswerRun]):
    """Spans to predict from questions and passages."""

    model_type = SpanReader
    run_type = AnswerRun

    def __init__(self, prepared: PreparedQuestions, embedder: Mapping[str, Any]) -> None:
        super().__init__(
            prepared.tokenizer, prepared.train, prepared.held_out, prepared.names, prepared.warnings, embedder
        )
        self.questions, self._positions = prepared.questions, prepared.cutter.length

    @property
    def model_settings(self) -> dict[str, Any]:
        return {
            "vocabulary": self._positions + 1,
            "source_vocabulary": self.tokenizer.vocabulary,
            "separator": self.tokenizer.eos,
            **self.embedder,
        }

    def batches(self, model: SpanReader, config: RunConfig, reporter: Reporter) -> TrainingBatches:
        """Questions are cut at the end to the context of the encoder."""
        limit = model.source_context
        if limit is not None:
            if self._positions + 2 > limit:
                raise ConfigError(
                    f"data.passage_length is {self._positions}, and the encoder reads {limit} tokens of question and "
                    f"passage; set data.passage_length={limit // 2} data.passage_stride={limit // 3}"
                )
            separator = self.tokenizer.eos
            self.pairs, long = cut_questions(self.pairs, separator, limit)
            for split, pairs in self.splits.items():
                self.splits[split], more = cut_questions(pairs, separator, limit)
                self.held_out[split] = self.held_out[split]._replace(source=self.splits[split].source)
                long += more
            self.monitored = self.held_out["validation"]
            if long:
                reporter.note(f"{long:,} questions are cut to the encoder's context of {limit:,} tokens")
        return super().batches(model, config, reporter)

    def score_split(self, run: AnswerRun, split: str, progress: Callable[[float], None]) -> AnswerScore:
        return run.score_questions(self.questions[split], self.splits[split], progress=progress)


class AnswersTask(Task):
    """P(start, end | question, passage)."""

    run = AnswerRun
    missing_data = "no training data was given; name questions with their contexts, as SQuAD's JSON, with --data"

    @classmethod
    def open(cls, config: RunConfig, reporter: Reporter, stored: RunFolder | None) -> AnswerData:
        refuse_pairs(config)
        known = encoder_tokenizer(config) if stored is None else stored.tokenizer()
        prepared = prepare_squad(config.data, config.tokenizer, tokenizer=known, seed=config.seed)
        return AnswerData(prepared, embedder_settings(config) if stored is None else {})
