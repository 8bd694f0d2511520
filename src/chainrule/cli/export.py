"""`chainrule export`: convert a run to the file format of another tool."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from chainrule.cli.lines import progress_bar
from chainrule.cli.options import Json, RunPath, open_run, output, print_json
from chainrule.errors import ConfigError


class ExchangeFormat(StrEnum):
    """File formats that runs are exported to and imported from."""

    hf = "hf"
    arpa = "arpa"
    word2vec = "word2vec"


FORMATS_HELP = "hf: Hugging Face folder (gpt, bert); arpa: ARPA file (ngram); word2vec: word vectors (word2vec)."


def export(
    run: RunPath,
    to: Annotated[ExchangeFormat, typer.Option(help=f"File format to write. {FORMATS_HELP}")],
    out: Annotated[Path, typer.Option(help="Folder to create.", show_default=False)],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Allow a folder that is not empty.")] = False,
    json: Json = False,
) -> None:
    """Convert a run to the file format of another tool.

    A `gpt` run trained with --set model.layout=gpt2 becomes a folder for GPT2LMHeadModel.from_pretrained, a `bert` run
    one for BertForMaskedLM.from_pretrained. An `ngram` run becomes model.arpa, for KenLM and SRILM. A `word2vec` run
    becomes vectors.txt and vectors.bin, for gensim. The command prints the files that it writes. For example

        chainrule export runs/ngram --to arpa --out exported

    and `chainrule import exported --from arpa --out runs/again` is the way back.
    """
    if out.is_dir() and any(out.iterdir()) and not overwrite:
        raise ConfigError(f"{str(out)!r} is not empty; choose another folder, or replace files with --overwrite")
    from chainrule.interop.exchange import export_arpa, export_huggingface, export_word2vec

    opened = open_run(run, device="cpu")
    writers = {
        ExchangeFormat.hf: export_huggingface,
        ExchangeFormat.arpa: export_arpa,
        ExchangeFormat.word2vec: export_word2vec,
    }
    with progress_bar("exporting"):
        files = [str(file) for file in writers[to](opened.model, opened.folder.tokenizer(), out)]
    if json:
        print_json(files)
        return
    for file in files:
        output.print(f"[green]{file}[/green]", highlight=False)
