"""What is understood of data before anything is trained: `chainrule data`.

An overview is a tree of plain values: facts, then tables of counts by split, label or tag, then examples and notes.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from chainrule.config import DataConfig
from chainrule.data.conllu import read_tagged
from chainrule.data.corpus import Corpus, Prepared, Report, cut_off, prepare
from chainrule.data.examples import ExampleSplits, split_examples
from chainrule.data.images import ImageCorpus, prepare_images
from chainrule.data.labelled import choose_columns, prepare_labelled, read_labelled
from chainrule.data.parallel import prepare_pairs
from chainrule.data.recognition import DATA_TASKS, recognise_task
from chainrule.data.source import TextSource
from chainrule.data.squad import read_squad
from chainrule.data.survey import count_text, length_range, odd_bytes, repeated, watched
from chainrule.data.text import FileSource, find_files, open_source
from chainrule.errors import ConfigError, nearest
from chainrule.tokenizers import Tokenizer, train_tokenizer

EXAMPLES = 3
SHOWN_TOKENS = 40
SHOWN_CHARACTERS = 200
LISTED = 20  # labels or tags

Overview = dict[str, Any]


def overview(config: DataConfig, tokenizer: str, task: str | None = None, progress: Report | None = None) -> Overview:
    """Describe the data of a task; by default of the one that the data shows."""
    if task is not None and task not in DATA_TASKS:
        raise ConfigError(f"unknown task {task!r}; {nearest(task, DATA_TASKS)}")
    chosen = recognise_task(config) if task is None else task
    describe: Mapping[str, Callable[[DataConfig, str, Report | None], Overview]] = {
        "text": _text,
        "translation": _pairs,
        "labels": _labels,
        "tags": _tags,
        "answers": _answers,
        "images": _images,
    }
    return {"data": config.train, "task": chosen, **describe[chosen](config, tokenizer, progress)}


def file_facts(config: DataConfig, task: str, progress: Report | None = None) -> Overview:
    """Return the number and size of the files of text, and what is odd in their bytes, readable or not."""
    specs = [spec for spec in (config.source, config.train) if spec is not None]
    if task == "images" or any(spec.startswith(("builtin:", "hub:")) for spec in specs):
        return {}
    stream = config.remote == "stream" and task == "text"
    paths = [
        path
        for spec in specs
        if not Path(spec).is_dir() or task == "text"
        for path in find_files(spec, stream=stream)[0]
    ]
    paths = [path for path in paths if path.suffix != ".parquet"]
    size = sum(path.stat().st_size for path in paths)
    return {"files": len(paths), "file_size": size, **odd_bytes(paths, _stage(progress, "bytes"))} if paths else {}


# Tasks


def _text(config: DataConfig, tokenizer: str, progress: Report | None) -> Overview:
    source = open_source(config.train, config)
    prepared = prepare(config, tokenizer, progress=progress)
    config = prepared.config
    given = {name: spec for name, spec in (("validation", config.valid), ("test", config.test)) if spec is not None}
    parts = cut_off(source, config, list(given), cache=None, progress=None)
    sources: dict[str, TextSource] = {name: open_source(spec, config) for name, spec in given.items()}
    notes, duplicates = list(prepared.warnings), _stage(progress, "duplicates")
    characters = sum(one.characters for one in (prepared.train, prepared.valid, prepared.test) if one is not None)
    for split in ("validation", "test"):
        if split in given or split in parts:
            held_out = sources.get(split, source).pieces(parts.get(split))
            training = watched(source.pieces(parts.get("training")), prepared.train.characters, duplicates)
            same, total = repeated(training, held_out, source.unit)
            what = "documents" if source.unit == "documents" else "long lines"
            if same:
                notes.append(f"{same:,} of {total:,} {what} of the {split} data are training data, too")
    return {
        "format": source.form if isinstance(source, FileSource) else "text",
        "read_as": "documents, one per line or record" if source.unit == "documents" else "one stream of text",
        "counts": count_text(watched(source.pieces(), characters, _stage(progress, "characters")), source.unit),
        "splits": _text_splits(prepared),
        "tokenizer": _tokenizer_facts(tokenizer, prepared.tokenizer, prepared.train),
        "sample": _pieces(prepared.tokenizer, prepared.train),
        "notes": notes,
    }


def _pairs(config: DataConfig, tokenizer: str, progress: Report | None) -> Overview:
    found = prepare_pairs(config, tokenizer, progress=progress)
    splits = {"training": found.train, "validation": found.valid, "test": found.test}
    examples = [f"{pair.source}  →  {pair.target}" for pair in found.shown[:EXAMPLES]]
    return {
        "languages": " → ".join(code or "?" for code in found.languages),
        "splits": {
            name: {
                "pairs": pairs.pairs,
                "source_tokens": len(pairs.source),
                "target_tokens": len(pairs.target),
                "data": found.names.get(name, config.train),
            }
            for name, pairs in splits.items()
            if pairs is not None
        },
        "cleaning": {split: report.summary() for split, report in found.reports.items()},
        "tokenizer": _tokenizer_facts(tokenizer, found.tokenizers.target, found.train.target),
        "validation_examples": _short(examples),
        "sample": _pieces(found.tokenizers.target, found.train.target),
        "notes": list(found.warnings),
    }


def _labels(config: DataConfig, tokenizer: str, progress: Report | None) -> Overview:
    config, notes = choose_columns(config)
    splits = split_examples(config, lambda spec: read_labelled(spec, config))
    prepared = prepare_labelled(config, tokenizer)
    train = splits.examples["training"]
    facts: Overview = {}
    if config.source_field or config.target_field:
        facts["columns"] = f"text {config.source_field or 'default'}, label {config.target_field or 'default'}"
    return facts | {
        "splits": _example_splits(splits, "texts", config),
        "labels": _counted(one.label for one in train),
        "characters_per_text": length_range([len(one.text) for one in train]),
        "tokenizer": _tokenizer_facts(tokenizer, prepared.tokenizer, prepared.train.source),
        "examples": _short([f"{one.label}: {one.text}" for one in train[:EXAMPLES]]),
        "sample": _pieces(prepared.tokenizer, prepared.train.source),
        "notes": [*notes, *prepared.warnings, *_repeated_texts(splits, lambda one: one.text)],
    }


def _tags(config: DataConfig, tokenizer: str, progress: Report | None) -> Overview:
    splits = split_examples(config, lambda spec: read_tagged(spec, config))
    train = splits.examples["training"]
    examples = [" ".join(map("/".join, zip(one.words, one.tags, strict=True))) for one in train[:EXAMPLES]]
    return {
        "tag_column": config.tag_column or "default: UPOS, or the last",
        "splits": _example_splits(splits, "sentences", config),
        "tags": _counted(tag for one in train for tag in one.tags),
        "words_per_sentence": length_range([len(one.words) for one in train]),
        "distinct_words": len({word for one in train for word in one.words}),
        "examples": _short(examples),
        "notes": [*splits.warnings, *_repeated_texts(splits, lambda one: one.words)],
    }


def _answers(config: DataConfig, tokenizer: str, progress: Report | None) -> Overview:
    splits = split_examples(config, read_squad)
    train = splits.examples["training"]
    trained = train_tokenizer(tokenizer, lambda: iter({one.context for one in train}))
    examples = [
        f"{one.question}  →  {one.answers[0].text if one.answers else '(no answer)'}" for one in train[:EXAMPLES]
    ]
    return {
        "splits": _example_splits(splits, "questions", config),
        "contexts": len({one.context for one in train}),
        "questions_without_an_answer": sum(not one.answers for one in train),
        "characters_per_context": length_range([len(one.context) for one in train]),
        "vocabulary": trained.vocabulary,
        "examples": _short(examples),
        "notes": [*splits.warnings, *_repeated_texts(splits, lambda one: (one.question, one.context))],
    }


def _images(config: DataConfig, tokenizer: str, progress: Report | None) -> Overview:
    found = prepare_images(config, progress)
    splits: dict[str, ImageCorpus | None] = {"training": found.train, "validation": found.valid, "test": found.test}
    form = found.form
    facts: Overview = {
        "size": f"{form.width}×{form.height} pixels, {'grey' if form.channels == 1 else 'colour'}",
        "levels": form.levels,
        "splits": {
            name: {"images": len(images), "data": config.train if name == "training" else found.config.named(name)}
            for name, images in splits.items()
            if images is not None
        },
    }
    if found.train.labels is not None:
        facts["classes"] = _counted(form.classes[token] for token in found.train.labels.tokens.tolist())
    return facts | {"notes": list(found.warnings)}


# Parts of an overview


def _stage(progress: Report | None, name: str) -> Callable[[int, int], None] | None:
    """The progress of one stage."""
    return None if progress is None else functools.partial(progress, name)


def _text_splits(prepared: Prepared) -> dict[str, dict[str, Any]]:
    config = prepared.config
    corpora = {"training": prepared.train, "validation": prepared.valid, "test": prepared.test}
    found: dict[str, dict[str, Any]] = {}
    for name, corpus in corpora.items():
        if corpus is not None:
            documents = {} if corpus.offsets is None else {"documents": len(corpus.offsets) - 1}
            counts = {**documents, "bytes": corpus.bytes, "tokens": len(corpus)}
            unknown = {"unknown_tokens": corpus.unknown} if corpus.unknown else {}
            found[name] = {**counts, **unknown, "data": config.train if name == "training" else config.named(name)}
    return found


def _example_splits(splits: ExampleSplits[Any], what: str, config: DataConfig) -> dict[str, dict[str, Any]]:
    return {
        name: {what: len(found), "data": splits.names.get(name, config.train)}
        for name, found in splits.examples.items()
    }


def _tokenizer_facts(spec: str, tokenizer: Tokenizer, corpus: Corpus) -> dict[str, Any]:
    return {
        "kind": spec,
        "vocabulary": tokenizer.vocabulary,
        "bytes_per_token": round(corpus.bytes_per_token, 3),
        "note": tokenizer.note,
    }


def _pieces(tokenizer: Tokenizer, corpus: Corpus) -> list[str]:
    """The first tokens of the training data as texts."""
    return list(tokenizer.pieces(corpus.tokens[:SHOWN_TOKENS].tolist()))


def _counted(values: Any) -> dict[str, int]:
    counts = Counter(values)
    shown = dict(counts.most_common(LISTED))
    left = len(counts) - len(shown)
    return shown if not left else {**shown, f"{left:,} others": counts.total() - sum(shown.values())}


def _short(texts: Sequence[str]) -> list[str]:
    return [text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…" for text in texts]


def _repeated_texts(splits: ExampleSplits[Any], key: Callable[[Any], object]) -> list[str]:
    """A note for each split whose examples are also training examples."""
    known = {key(one) for one in splits.examples["training"]}
    notes = []
    for name, examples in splits.examples.items():
        same = 0 if name == "training" else sum(key(one) in known for one in examples)
        if same:
            notes.append(f"{same:,} of {len(examples):,} examples of the {name} data are training data, too")
    return notes
