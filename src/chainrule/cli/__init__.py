"""The command line: one file per verb. Heavy imports are made inside the verbs, so that help comes at once."""

from __future__ import annotations

import sys

import typer

from chainrule.cli import (
    align,
    compare,
    draw,
    embed,
    export,
    fill,
    frontier,
    generate,
    importing,
    info,
    mix,
    models,
    predict,
    score,
    train,
    translate,
    verify,
    words,
)
from chainrule.cli.options import errors
from chainrule.errors import ChainruleError

app = typer.Typer(
    name="chainrule",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Sequence models of every family: train them on data of your own, score text, generate text.

Every model is a factorisation by the chain rule, log P(x) = Σ log P(x_t | x_<t), so all of them answer to the same
words. A first run, with no data of your own:

    chainrule train gpt --data builtin:prose --minutes 2 --out runs/first
    chainrule score runs/first --text "The import statement" --per-token
    chainrule generate runs/first --prompt "The "
""",
)
app.command("compare")(compare.compare)
app.command("models")(models.models)
app.command("train")(train.train)
app.command("mix")(mix.mix)
app.command("score")(score.score)
app.command("generate")(generate.generate)
app.command("translate")(translate.translate)
app.command("align")(align.align)
app.command("predict")(predict.predict)
app.command("draw")(draw.draw)
app.command("embed")(embed.embed)
app.command("words")(words.words)
app.command("fill")(fill.fill)
app.command("frontier")(frontier.frontier)
app.command("verify")(verify.verify)
app.command("info")(info.info)
app.command("export")(export.export)
app.command("import")(importing.import_)


def version(asked: bool) -> None:
    if asked:
        from chainrule import __version__

        typer.echo(f"chainrule {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(False, "--version", callback=version, is_eager=True, help="Print the version."),
) -> None:
    """Options that belong to no verb."""


def main() -> None:
    """The `chainrule` command. A mistake of the user's is one line on stderr and status 2."""
    try:
        app()
    except (ChainruleError, OSError) as error:
        if isinstance(error, BrokenPipeError):  # the reader of our output has seen enough
            sys.stderr.close()
            sys.exit(141)
        errors.print(f"[bold red]error[/bold red] {escape(str(error))}", soft_wrap=True, highlight=False)
        sys.exit(2)


def escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)
