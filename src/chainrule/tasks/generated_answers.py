"""Generated answers: a span model (t5) trained on pairs of question and answer, or of any text and another.

The model is the same as in `tasks.filling`, so a run that was trained on plain text can be fine-tuned on pairs
(`start_from`): the ids of its sentinels are kept, although answers have none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import Field

from chainrule.config import DataConfig, RunConfig
from chainrule.data.pairs import open_pairs
from chainrule.data.parallel import PairTokenizers, prepare_pairs
from chainrule.data.records import JSON_LINES, field_names, read_records
from chainrule.data.tables import first_known, names_of
from chainrule.data.text import find_files, form_of, table_rows
from chainrule.decoding import Search, Translator
from chainrule.errors import ConfigError, DataError
from chainrule.evaluation.answers import best_match, exact_match, f1
from chainrule.evaluation.likelihood import score as likelihood_score
from chainrule.evaluation.scores import MetricValues
from chainrule.interface.base import NeuralModel
from chainrule.interface.conditional import ParallelModel
from chainrule.metrics import score_rows
from chainrule.models.t5 import SENTINELS
from chainrule.tasks.scoring import ScoreReport, ScoreRequest
from chainrule.tasks.translation import TranslationData, TranslationRun
from chainrule.training.checkpoint import RunFolder
from chainrule.training.progress import Fraction, Record, Reporter, shown_fraction

QUESTION_NAMES = ("question", "source", "query", "input", "prompt")
ANSWER_NAMES = ("answer", "target", "response", "output", "completion")
KEPT = {"length_ratio": 1e6, "duplicates": "keep", "max_side_bytes": 10_000}
"""Answers are often much shorter than questions, and a question may be asked twice."""


# Runs


class GeneratedAnswer(NamedTuple):
    """An answer to a question."""

    text: str
    log_prob: float  # nats


class GeneratedAnswerScore(MetricValues):
    """Metrics, and how they were measured."""

    exact_match: float = Field(description="fraction of answers that equal the correct one after normalisation")
    f1: float = Field(description="mean F1 over words with the correct answer")
    nats_per_token: float = Field(description="mean of −log P(y_t | y_<t, question) over the correct answers and EOS")
    questions: int
    search: Search


@dataclass(frozen=True, kw_only=True, repr=False)
class GeneratedAnswerRun(TranslationRun):
    """A model that generates answers to questions."""

    does = "generates answers"
    use = "chainrule generate {run} --prompt …"

    def answer(self, questions: str | Iterable[str], *, beam: int = 5, num: int = 1) -> Iterator[list[GeneratedAnswer]]:
        """The best answers to each question, best first."""
        for found in self.translate(questions, Search(beam=max(beam, num), n_best=num)):
            yield [GeneratedAnswer(one.text, one.log_prob) for one in found]

    def score_answers(
        self, data: str, *, beam: int = 5, progress: Fraction | bool | None = True
    ) -> GeneratedAnswerScore:
        """Compare generated answers with those of the data. The result is also stored in scores.jsonl."""
        asked, right = zip(*open_pairs(data, None, self.config.data).pairs(), strict=True)
        corpus, source, _ = self.scored_corpus(None, data)
        nats = likelihood_score(self.model, corpus, source=source).nats_per_token
        with shown_fraction(progress, "scoring") as report:
            result = self._compared(asked, right, nats, Search(beam=beam), report)
        self.keep_score(result, corpus, data)
        return result

    def _compared(
        self,
        asked: Sequence[str],
        right: Sequence[str],
        nats: float,
        search: Search,
        progress: Callable[[float], None] | None,
    ) -> GeneratedAnswerScore:
        found = []
        for number, (best, *_) in enumerate(self.translate(asked, search), start=1):
            found.append(best.text)
            if progress is not None:
                progress(number / len(asked))
        return GeneratedAnswerScore(
            **answer_metrics(found, right), nats_per_token=nats, questions=len(asked), search=search
        )

    def evaluate(self, request: ScoreRequest, progress: Callable[[float], None] | None = None) -> ScoreReport:
        if request.data is None or request.given("text", "source", "references", "stride", "per_token", "picture"):
            raise ConfigError(f"{str(self.path)!r} {self.does}; give pairs of question and answer with --data")
        beam = int(request.search.get("beam", 5))
        values = self.score_answers(request.data, beam=beam, progress=progress).model_dump(mode="json")
        return ScoreReport(values, score_rows(values) | {"search": f"beam {beam}"})


def answer_metrics(found: Sequence[str], right: Sequence[str]) -> dict[str, float]:
    """Exact match and F1, as defined by SQuAD."""
    pairs = list(zip(found, right, strict=True))
    measures = {"exact_match": exact_match, "f1": f1}
    return {
        name: sum(best_match(measure, one, [other]) for one, other in pairs) / len(pairs)
        for name, measure in measures.items()
    }


# Data


class GeneratedAnswerData(TranslationData):
    """Answers to predict from questions."""

    run_type = GeneratedAnswerRun

    def __init__(self, prepared: Any, config: RunConfig) -> None:
        super().__init__(prepared)
        self._config, self._sentinels = config.data, config.model.get("sentinels", SENTINELS)

    @property
    def model_settings(self) -> dict[str, int]:
        return {name: size + self._sentinels for name, size in super().model_settings.items()}

    def data_settings(self, config: DataConfig) -> DataConfig:
        return super().data_settings(self._config)

    def validation_metrics(self, model: NeuralModel | ParallelModel, config: RunConfig) -> Callable[[], Record]:
        """Exact match and F1 of greedy answers to the first validation questions."""
        asked, right = zip(*self._prepared.shown, strict=True)
        translator = Translator(model, self.source_tokenizer, self.tokenizer)

        def metrics() -> Record:
            found = translator.translate_texts(asked, Search(beam=1), batch=len(asked))
            scores = answer_metrics([best.text for best, *_ in found], right)
            return {f"valid_{name}": value for name, value in scores.items()}

        return metrics


def has_pairs(config: DataConfig) -> bool:
    """Whether the data of a span model are pairs: by the settings, or by names of columns or fields."""
    if config.pairs is not None or config.source is not None:
        return bool(config.pairs) or config.source is not None
    return pair_names(config.train) is not None


def pair_names(spec: str) -> tuple[str, str] | None:
    """The names of question and answer in the first row or record; None if there are none."""
    if spec == "-" or spec.startswith(("builtin:", "hub:")):
        return None
    path = find_files(spec)[0][0]
    form = form_of(path)
    if form in JSON_LINES:
        names = list(field_names(next(read_records(path), ("", {}))[1]))
    elif form in (".tsv", ".csv"):
        names = next(iter(table_rows(path))).cells
    else:
        return None
    known = [first_known(names_of(names), usual) for usual in (QUESTION_NAMES, ANSWER_NAMES)]
    return None if known[0] is None or known[1] is None else (names[known[0]].strip(), names[known[1]].strip())


def open_answers(config: RunConfig, reporter: Reporter, stored: RunFolder | None) -> GeneratedAnswerData:
    """Read and encode pairs of question and answer in one vocabulary."""
    if config.data.separate_vocabularies or config.source_tokenizer is not None:
        raise ConfigError(f"{config.family} has one vocabulary for questions and answers; remove the second tokenizer")
    update: dict[str, Any] = {name: value for name, value in KEPT.items() if name not in config.data.model_fields_set}
    update["pairs"] = True
    if config.data.source is None and (names := pair_names(config.data.train)) is not None:
        update |= {
            name: value
            for name, value in zip(("source_field", "target_field"), names, strict=True)
            if getattr(config.data, name) is None
        }
    config = config.model_copy(update={"data": config.data.model_copy(update=update)})
    tokenizer = None if stored is None else stored.tokenizer()
    prepared = prepare_pairs(
        config.data,
        config.tokenizer,
        tokenizers=None if tokenizer is None else PairTokenizers(tokenizer, tokenizer),
        progress=reporter.preparing,
    )
    if not prepared.train.pairs:
        raise DataError(f"{config.data.train!r} has no pairs of question and answer; check the data")
    return GeneratedAnswerData(prepared, config)
