"""Answers: a span of a passage for each question."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, final, get_args

import torch

from chainrule.config import RunConfig
from chainrule.data.parallel import PairedCorpus
from chainrule.data.sentences import sentences_of
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
from chainrule.decoding.structured import Span, highest_expected_f1, top_spans
from chainrule.errors import ConfigError, DataError, nearest
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
SpanSearch: TypeAlias = Literal["expected_f1", "probability"]
SEARCHES = get_args(SpanSearch)
STARTS, ENDS, CANDIDATES = 6, 6, 150  # spans of a passage; the most probable ones of a text, by which F1 is expected


class Candidate(NamedTuple):
    """A span of a text."""

    begin: int  # in characters
    end: int
    log_odds: float  # against no answer anywhere
    text: str


class Candidates(NamedTuple):
    """What was found in the passages of a text."""

    spans: Sequence[Candidate]  # most probable first
    nowhere: float  # probability that the text has no answer
    cut: bool  # whether the question was cut

    def answer(self, search: SpanSearch) -> PredictedAnswer:
        if not self.spans:
            return NO_TEXT
        best = 0
        if search == "expected_f1":
            begins, ends, odds, _ = zip(*self.spans[:CANDIDATES], strict=True)
            best = highest_expected_f1(begins, ends, odds)
        chosen = self.spans[best]
        total = torch.tensor([one.log_odds for one in self.spans], dtype=torch.float64).logsumexp(0).item()
        probability = (1 - self.nowhere) * math.exp(chosen.log_odds - total)
        return PredictedAnswer(chosen.text, probability, self.nowhere, chosen.begin, self.cut)


@dataclass(frozen=True, kw_only=True, repr=False)
class AnswerRun(PredictionRun[SpanReader]):
    """A model of answers given questions and passages.

    A long text is read in passages. If at most one of them has the answer, the odds of a span in passage i against no
    answer anywhere are P_i(span) / P_i(none). So spans of all passages are compared by these odds, and

        P(nowhere) = 1 / (1 + Σ_i o_i),    o_i = (1 − P_i(none)) / P_i(none)
        P(span) ∝ odds(span) exp(w · overlap(sentence of the span, question))

    The last factor is a prior: answers are in sentences that share rare words with the question, which a model that
    knows single passages cannot tell, since it does not know what is rare in the whole text. Its weight w is
    `data.word_overlap`. Of each passage the most probable spans are known, and P is normalised over these.
    """

    model_type = SpanReader
    does = "answers questions"

    def cutter(self) -> PassageCutter:
        """Cuts texts into passages as in training."""
        data = self.config.data
        return PassageCutter(self.tokenizer, length=data.passage_length, stride=data.passage_stride)

    def answer(self, question: str, context: str, *, search: str | None = None) -> PredictedAnswer:
        """The best answer to a question in a text of any length.

        By `expected_f1`, the default, it is the one that shares most with all probable ones, by `probability` the most
        probable one.
        """
        return self._candidates(question, context, self.cutter()).answer(_search(search))

    def _candidates(self, question: str, context: str, cutter: PassageCutter) -> Candidates:
        passages = [passage for passage in cutter.passages(context) if passage.tokens]
        if not passages:
            return Candidates((), 1.0, False)
        sources = [cutter.source(question, passage) for passage in passages]
        limit = self.model.source_context
        cut = limit is not None and max(map(len, sources)) > limit
        found = self.spans(sources, starts=STARTS, ends=ENDS)
        nothing = [min(spans[0].log_no_answer, -1e-12) for spans in found]  # not 1, which would leave no odds at all
        total = [math.log(-math.expm1(nats)) - nats for nats in nothing]  # log o_i
        among = torch.tensor([0.0, *total], dtype=torch.float64).logsumexp(0).item()
        return Candidates(self._weighted(question, context, zip(passages, found, strict=True)), math.exp(-among), cut)

    def _weighted(
        self, question: str, context: str, found: Iterable[tuple[Passage, Sequence[Span]]]
    ) -> list[Candidate]:
        """All spans, most probable first; one that is in two passages has the higher of its odds."""
        sentences = sentences_of(context)
        prior = self.config.data.word_overlap * sentences.shares(question)
        best: dict[tuple[int, int], Candidate] = {}
        for passage, spans in found:
            for span in spans:
                begin, end = passage.tokens[span.first - 1].begin, passage.tokens[span.last - 1].end
                log_odds = span.log_odds + float(prior[sentences.at(begin)])
                known = best.get((begin, end))
                if known is None or known.log_odds < log_odds:
                    best[begin, end] = Candidate(begin, end, log_odds, passage.text((span.first, span.last)))
        return sorted(best.values(), key=lambda one: -one.log_odds)

    def spans(
        self,
        sources: Sequence[Sequence[int]],
        *,
        starts: int = 5,
        ends: int = 1,
        progress: Callable[[float], None] | None = None,
    ) -> list[list[Span]]:
        """The best spans of each encoded source; questions are cut to the context of the encoder."""
        sources = [self._fitted(source) for source in sources]

        def compute(group: Sequence[int]) -> list[list[Span]]:
            packed = Sequences.pack([sources[row] for row in group], device=self.model.device)
            return top_spans(self.model, packed, starts=starts, ends=ends)

        return in_groups([len(row) for row in sources], compute, progress=progress)

    def _fitted(self, source: Sequence[int]) -> list[int]:
        return cut_question(source, self.tokenizer.eos, self.model.source_context)

    def predict_lines(
        self, lines: Iterable[str], *, search: str | None = None, beam: int = 5
    ) -> Iterator[LinePrediction | None]:
        chosen, cutter = _search(search), self.cutter()
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                yield None
                continue
            found = self._candidates(*_question_and_context(line, number), cutter).answer(chosen)
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
            candidates = self._candidates(one.question, one.context, cutter)
            answers = (candidates.answer(search) for search in SEARCHES)
            found.append([Answer(answer.text, answer.start) for answer in answers])
            if progress is not None:
                progress(0.9 * number / len(questions))
        sources, targets = zip(*passages.ids(), strict=True)
        spans = self.spans([source.tolist() for source in sources])
        best, likeliest = zip(*found, strict=True)
        return answer_score(
            questions,
            best,
            likeliest,
            answerable=[bool(target[0]) for target in targets],
            predicted=[one.log_no_answer < math.log(0.5) for one, *_ in spans],
        )


def _search(name: str | None) -> SpanSearch:
    if name is None:
        return "expected_f1"
    if name not in SEARCHES:
        raise ConfigError(f"unknown search {name!r} of answers; {nearest(name, SEARCHES)}")
    return name  # type: ignore[return-value]


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
