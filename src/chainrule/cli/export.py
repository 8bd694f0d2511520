"""`chainrule export`: take a run to other tools."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from chainrule.cli.options import Json, RunPath, open_run, output, print_json


class Form(StrEnum):
    """Forms of other tools that a run can be written in, or read from."""

    hf = "hf"
    arpa = "arpa"
    word2vec = "word2vec"


def export(
    run: RunPath,
    to: Annotated[
        Form,
        typer.Option(help="hf: a Hugging Face folder (gpt, bert); arpa: an n-gram file; word2vec: files of vectors."),
    ],
    out: Annotated[Path, typer.Option(help="Folder to write to.", show_default=False)],
    json: Json = False,
) -> None:
    """Write a run in the form of another tool.

    A `gpt` trained with --set model.layout=gpt2 becomes a folder for GPT2LMHeadModel.from_pretrained, a `bert` one for
    BertForMaskedLM.from_pretrained; an `ngram` becomes DIR/model.arpa, which KenLM and SRILM read; a
    `word2vec` becomes DIR/vectors.txt and DIR/vectors.bin, which gensim reads.
    """
    from chainrule.interop.exchange import export_arpa, export_huggingface, export_word2vec

    opened = open_run(run, device="cpu")
    writers = {Form.hf: export_huggingface, Form.arpa: export_arpa, Form.word2vec: export_word2vec}
    files = [str(file) for file in writers[to](opened.model, opened.folder.tokenizer(), out)]
    if json:
        print_json(files)
        return
    for file in files:
        output.print(f"[green]{file}[/green]", highlight=False)
