"""`chainrule export`: take a run to other tools."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from chainrule.cli.options import Json, RunPath, open_writer, output, print_json


class Form(StrEnum):
    """Forms of other tools that a run can be written in, or read from."""

    hf = "hf"
    arpa = "arpa"


def export(
    run: RunPath,
    to: Annotated[Form, typer.Option(help="hf: a Hugging Face GPT-2 folder; arpa: an n-gram file.")],
    out: Annotated[Path, typer.Option(help="Folder to write to.", show_default=False)],
    json: Json = False,
) -> None:
    """Write a run in the form of another tool.

    A `gpt` trained with --set model.layout=gpt2 becomes a folder for GPT2LMHeadModel.from_pretrained; an `ngram`
    becomes DIR/model.arpa, which KenLM and SRILM read.
    """
    from chainrule.interop.exchange import export_arpa, export_huggingface

    opened = open_writer(run, device="cpu")
    writer = export_huggingface if to is Form.hf else export_arpa
    files = [str(file) for file in writer(opened.autoregressive, opened.tokenizer, out)]
    if json:
        print_json(files)
        return
    for file in files:
        output.print(f"[green]{file}[/green]", highlight=False)
