"""Sentences with one tag per word: CoNLL-U, and columns as in CoNLL-2000 and 2003, with a blank line between sentences.

CoNLL-U (universaldependencies.org/format.html) has ten tab-separated columns. Its syntactic words are tagged; multiword
tokens (`1-2  don't`) and empty nodes (`8.1`) have no tag and are skipped. Other files have the word in the first column
and its tag in `data.tag_column`, by default the last; three to five columns have the names of CoNLL's shared tasks
(word, pos, chunk, ner). Lines with -DOCSTART-, which separate documents, are skipped.

A sentence is encoded as characters, with a line end after each word, so that a model also sees the characters of unseen
words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from chainrule.config import DataConfig
from chainrule.data.examples import PreparedExamples, in_order, label_ids, paired, split_examples, unknown_label
from chainrule.data.parallel import PairedCorpus
from chainrule.data.source import Normalisation, normalisation_of
from chainrule.data.text import find_files, form_of, read_every_line
from chainrule.errors import ConfigError, DataError, nearest
from chainrule.tokenizers import Tokenizer, train_tokenizer

COLUMNS = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")
FORM = COLUMNS.index("FORM")
SHARED_TASK_COLUMNS = {
    2: ("word", "tag"),
    3: ("word", "pos", "chunk"),
    4: ("word", "pos", "chunk", "ner"),
    5: ("word", "lemma", "pos", "chunk", "ner"),
}
"""Names of columns by their number: CoNLL-2000, CoNLL-2003 in English and in German."""
DOCUMENT_START = "-DOCSTART-"
WORD_ID, OTHER_ID = re.compile(r"\d+"), re.compile(r"\d+-\d+|\d+\.\d+")
END_OF_WORD = "\n"


class Tagged(NamedTuple):
    """A tagged sentence."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    where: str  # first line and file


class _Word(NamedTuple):
    word: str
    tag: str
    where: str


def read_tagged(spec: str, config: DataConfig) -> list[Tagged]:
    """Read every sentence of a file, a folder or a glob."""
    found: list[Tagged] = []
    for path in find_files(spec)[0]:
        found += _sentences(path, config)
    if not found:
        raise DataError(f"{spec!r} contains no sentences; give CoNLL-U, or lines with a word and its tag")
    return found


def _sentences(path: Path, config: DataConfig) -> Iterator[Tagged]:
    normalise = normalisation_of(config)
    current: list[_Word] = []
    for one in [*_words(path, config), None]:
        if one is not None:
            current.append(one)
        elif current:
            words = tuple(normalised_word(word.word, normalise) for word in current)
            yield Tagged(words, tuple(word.tag for word in current), current[0].where)
            current = []


def normalised_word(word: str, normalise: Normalisation) -> str:
    """Normalise a word; a line end would split it in two and is replaced by a space."""
    return " ".join(normalise(word).split("\n"))


def _words(path: Path, config: DataConfig) -> Iterator[_Word | None]:
    """Yield every word with its tag, and None at the end of a sentence."""
    column: int | None = None
    universal = form_of(path) == ".conllu"
    for number, line in enumerate(read_every_line(path), start=1):
        where = f"line {number:,} of {str(path)!r}"
        line = line.rstrip("\r")
        if not line.strip():
            yield None
            continue
        if universal and line.startswith("#"):
            continue
        cells = line.split("\t") if "\t" in line else line.split()
        if cells[0] == DOCUMENT_START:
            yield None
            continue
        if column is None:
            universal = universal or (len(cells) == len(COLUMNS) and WORD_ID.fullmatch(cells[0]) is not None)
            column = _tag_column(config.tag_column, len(cells), where, universal=universal)
        if universal and not _is_word(cells, where):
            continue
        word = cells[FORM if universal else 0]
        tag = cells[column].strip() if column < len(cells) else ""
        if not tag or (universal and tag == "_"):
            name = COLUMNS[column] if universal else f"column {column + 1}"
            raise DataError(f"{where}: the word {word!r} has no tag in {name}; tag it, or set data.tag_column")
        yield _Word(word, tag, where)


def _is_word(cells: Sequence[str], where: str) -> bool:
    """Whether a line of CoNLL-U is a word, not a multiword token or an empty node."""
    if len(cells) != len(COLUMNS):
        raise DataError(f"{where} has {len(cells)} tab-separated columns, and CoNLL-U has {len(COLUMNS)}; fix the line")
    if OTHER_ID.fullmatch(cells[0]):
        return False
    if not WORD_ID.fullmatch(cells[0]):
        raise DataError(f"{where} starts with {cells[0]!r:.40}, which is not a word number; fix the line")
    return True


def _tag_column(wanted: str | None, count: int, where: str, *, universal: bool) -> int:
    if universal:
        if wanted is not None and wanted.isdecimal() and 1 <= int(wanted) <= len(COLUMNS):
            return int(wanted) - 1
        if (wanted or "UPOS") not in COLUMNS:
            raise ConfigError(f"data.tag_column is {wanted!r}; {nearest(str(wanted), COLUMNS)}")
        return COLUMNS.index(wanted or "UPOS")
    if count < 2:
        raise DataError(f"{where} has a word and no tag; give a word and its tag on every line, separated by a tab")
    if wanted is None:
        return count - 1
    names = SHARED_TASK_COLUMNS.get(count, ())
    if wanted.lower() in names[1:]:
        return names.index(wanted.lower())
    if not (wanted.isdecimal() and 2 <= int(wanted) <= count):
        known = f" ({', '.join(names[1:])})" if names else ""
        raise ConfigError(
            f"data.tag_column is {wanted!r}, and {where} has the columns 2 to {count}{known}; give its number"
        )
    return int(wanted) - 1


def prepare_tagged(
    config: DataConfig, tokenizer_spec: str, *, tokenizer: Tokenizer | None = None, labels: Sequence[str] = ()
) -> PreparedExamples:
    """Read and encode all splits; tags and characters come from the training data unless they are given."""
    examples, names, warnings = split_examples(config, lambda spec: read_tagged(spec, config))
    train = examples["training"]
    tags = tuple(labels) or in_order({tag for one in train for tag in one.tags})
    if len(tags) < 2:
        raise DataError(
            f"all words of the training data have the tag {tags[0]!r}, so there is nothing to learn; choose the column "
            "of the tags with data.tag_column"
        )
    if tokenizer is None:
        if tokenizer_spec != "chars":
            raise ConfigError(f"a tagger needs the tokenizer chars, got {tokenizer_spec!r}; leave it out")
        tokenizer = train_tokenizer("chars", lambda: (joined_words(one.words) for one in train))
    encoded = {split: encode_tagged(found, tokenizer, tags) for split, found in examples.items()}
    return PreparedExamples(tokenizer, tags, encoded.pop("training"), encoded, names, warnings)


def encode_tagged(sentences: Sequence[Tagged], tokenizer: Tokenizer, tags: Sequence[str]) -> PairedCorpus:
    """Encode sentences as sources and their tags as targets."""
    ids = label_ids(tags)
    for one in sentences:
        for tag in one.tags:
            if tag not in ids:
                raise unknown_label(f"the sentence at {one.where}", tag, tags, "tag")
    targets = [[ids[tag] for tag in one.tags] for one in sentences]
    sources = [tokenizer.encode(joined_words(one.words)) for one in sentences]
    return paired(sources, targets, tokenizer.vocabulary, len(tags))


def joined_words(words: Sequence[str]) -> str:
    """Return a sentence as the text that is encoded, one word per line."""
    return "".join(word + END_OF_WORD for word in words)
