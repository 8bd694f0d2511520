"""How good answers are: exact match and F1 as SQuAD defines them (Rajpurkar et al., 2016).

Both compare answers after normalisation: lower case, no punctuation, no articles, single spaces. F1 is that of the bags
of words of two answers. Of several right answers, the nearest counts. No words are right where there is no answer.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

from pydantic import Field

from chainrule.config import Settings
from chainrule.data.squad import Answer, Question, likeliest_sentence
from chainrule.errors import DataError

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


class ReadingScore(Settings):
    """The numbers, and the baseline that they must beat."""

    exact_match: float = Field(description="share of answers that equal a right one")
    f1: float = Field(description="mean F1 of the words of an answer and of the right one nearest to it")
    sentence_exact_match: float = Field(description="of the sentence with most words of the question")
    sentence_f1: float
    finds: float = Field(description="share of the found answers that overlap a right one in the text")
    answers_here: float = Field(description="accuracy of telling passages that answer a question from others")
    answers_here_majority: float = Field(description="the same by always saying what is more frequent")
    questions: int
    passages: int = Field(description="pairs of a question and a passage that were told apart")


def normalised_answer(text: str) -> str:
    """As SQuAD compares it."""
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


def nearest_answer(measure: Callable[[str, str], float], found: str, right: Sequence[str]) -> float:
    """By the right answer that is nearest; by none where there is none."""
    return max(measure(found, one) for one in right or ("",))


def reading_score(
    questions: Sequence[Question], answers: Sequence[Answer], *, here: Sequence[bool], told: Sequence[bool]
) -> ReadingScore:
    """The score of an answer to each question, and of what was told of passages: whether there is an answer here."""
    if not questions or not here:
        raise DataError("there is nothing to score: no questions were given; give at least one")
    sentences = [likeliest_sentence(one.question, one.context) for one in questions]

    def mean(measure: Callable[[str, str], float], found: Sequence[str]) -> float:
        right = ([answer.text for answer in asked.answers] for asked in questions)
        return sum(nearest_answer(measure, *pair) for pair in zip(found, right, strict=True)) / len(questions)

    return ReadingScore(
        exact_match=mean(exact_match, [one.text for one in answers]),
        f1=mean(f1, [one.text for one in answers]),
        sentence_exact_match=mean(exact_match, sentences),
        sentence_f1=mean(f1, sentences),
        finds=sum(_overlaps(one, asked) for one, asked in zip(answers, questions, strict=True)) / len(questions),
        answers_here=sum(one == other for one, other in zip(here, told, strict=True)) / len(here),
        answers_here_majority=max(sum(here), len(here) - sum(here)) / len(here),
        questions=len(questions),
        passages=len(here),
    )


def _overlaps(found: Answer, asked: Question) -> bool:
    """Whether an answer shares a character of the text with a right one."""
    end = found.start + len(found.text)
    return any(right.start < end and found.start < right.start + len(right.text) for right in asked.answers)
