"""Metrics of question answering: exact match and F1 as defined by SQuAD (Rajpurkar et al. 2016).

Both compare answers after normalisation: lower case, no punctuation, no articles, single spaces. F1 is that of the bags
of words of two answers. If there are several correct answers, the best match counts. A question without an answer has
the empty string as its correct answer.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

from pydantic import Field

from chainrule.data.sentences import likeliest_sentence
from chainrule.data.squad import Answer, Question
from chainrule.errors import DataError
from chainrule.evaluation.scores import MetricValues

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


class AnswerScore(MetricValues):
    """Metrics, and those of a baseline: the sentence that shares most words with the question."""

    exact_match: float = Field(description="fraction of answers that equal a correct one")
    f1: float = Field(description="mean F1 over words with the best matching correct answer")
    likeliest_exact_match: float = Field(description="exact match of the most probable answers")
    likeliest_f1: float = Field(description="F1 of the most probable answers")
    sentence_exact_match: float = Field(description="exact match of the baseline")
    sentence_f1: float
    overlap: float = Field(description="fraction of predicted answers that overlap a correct one in the text")
    answerability: float = Field(description="accuracy of predicting whether a passage has an answer")
    answerability_majority: float = Field(description="the same for always predicting the majority")
    questions: int
    passages: int = Field(description="number of pairs of a question and a passage")


def normalised_answer(text: str) -> str:
    """Normalise an answer as SQuAD does."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def exact_match(found: str, right: str) -> float:
    return float(normalised_answer(found) == normalised_answer(right))


def f1(found: str, right: str) -> float:
    """The harmonic mean of precision and recall over words."""
    ours, theirs = normalised_answer(found).split(), normalised_answer(right).split()
    if not ours or not theirs:
        return float(ours == theirs)
    shared = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * shared / (len(ours) + len(theirs))


def best_match(measure: Callable[[str, str], float], found: str, right: Sequence[str]) -> float:
    """The score of the best matching correct answer; against the empty string if there is none."""
    return max(measure(found, one) for one in right or ("",))


def answer_score(
    questions: Sequence[Question],
    answers: Sequence[Answer],
    likeliest: Sequence[Answer],
    *,
    answerable: Sequence[bool],
    predicted: Sequence[bool],
) -> AnswerScore:
    """Score one answer per question and the most probable ones, and predictions of whether passages have an answer."""
    if not questions or not answerable:
        raise DataError("no questions to score; give at least one")
    sentences = [likeliest_sentence(one.question, one.context) for one in questions]

    def mean(measure: Callable[[str, str], float], found: Sequence[str]) -> float:
        right = ([answer.text for answer in asked.answers] for asked in questions)
        return sum(best_match(measure, *pair) for pair in zip(found, right, strict=True)) / len(questions)

    return AnswerScore(
        exact_match=mean(exact_match, [one.text for one in answers]),
        f1=mean(f1, [one.text for one in answers]),
        likeliest_exact_match=mean(exact_match, [one.text for one in likeliest]),
        likeliest_f1=mean(f1, [one.text for one in likeliest]),
        sentence_exact_match=mean(exact_match, sentences),
        sentence_f1=mean(f1, sentences),
        overlap=sum(_overlaps(one, asked) for one, asked in zip(answers, questions, strict=True)) / len(questions),
        answerability=sum(one == other for one, other in zip(answerable, predicted, strict=True)) / len(answerable),
        answerability_majority=max(sum(answerable), len(answerable) - sum(answerable)) / len(answerable),
        questions=len(questions),
        passages=len(answerable),
    )


def _overlaps(found: Answer, asked: Question) -> bool:
    """Whether an answer overlaps a correct one in the text."""
    end = found.start + len(found.text)
    return any(right.start < end and found.start < right.start + len(right.text) for right in asked.answers)
