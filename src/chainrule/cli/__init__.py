"""The command line: one file per command. Heavy imports are inside the commands, so that `--help` is fast."""

from __future__ import annotations

import sys

import typer

from chainrule.cli import (
    align,
    chat,
    compare,
    data,
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
    plan,
    predict,
    score,
    serve,
    sweep_gamma,
    train,
    translate,
    verify,
    words,
)
from chainrule.cli.failures import report_error, report_stop
from chainrule.training.process import INTERRUPTED, stop_signals

app = typer.Typer(
    name="chainrule",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Train, compare, score and decode autoregressive sequence models, from n-grams to Transformers.

Every model is a factorization by the chain rule, log P(x) = Σ log P(x_t | x_<t), so the same commands work for all
families. A first run, with built-in data:

    chainrule train gpt --data builtin:prose --minutes 2 --out runs/first
    chainrule score runs/first --text "The import statement" --per-token
    chainrule generate runs/first --prompt "The "

Which family is best for your data:

    chainrule compare --data my.txt --minutes 10 --out comparison
""",
)
app.command("compare")(compare.compare)
app.command("models")(models.models)
app.command("data")(data.data)
app.command("train")(train.train)
app.command("plan")(plan.plan)
app.command("mix")(mix.mix)
app.command("score")(score.score)
app.command("generate")(generate.generate)
app.command("chat")(chat.chat)
app.command("translate")(translate.translate)
app.command("align")(align.align)
app.command("predict")(predict.predict)
app.command("draw")(draw.draw)
app.command("embed")(embed.embed)
app.command("words")(words.words)
app.command("fill")(fill.fill)
app.command("serve")(serve.serve)
app.command("frontier")(frontier.frontier)
app.command("sweep-gamma")(sweep_gamma.sweep_gamma)
app.command("verify")(verify.verify)
app.command("info")(info.info)
app.command("export")(export.export)
app.command("import")(importing.import_)


def version(requested: bool) -> None:
    if requested:
        from chainrule import __version__

        typer.echo(f"chainrule {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(False, "--version", callback=version, is_eager=True, help="Print the version."),
) -> None:
    """Options of the program itself."""


def main() -> None:
    """The `chainrule` command: what the user can mend is one line and status 2, with --json as a JSON object."""
    with stop_signals() as received:
        try:
            status = app(prog_name="chainrule", standalone_mode=False) or 0
            sys.stdout.flush()
        except KeyboardInterrupt:
            status = INTERRUPTED
        except typer.Abort:  # end of input at a prompt, or Ctrl-C in older versions of typer
            status = INTERRUPTED
        except BrokenPipeError:  # for example, piped into `head`
            sys.stderr.close()
            sys.exit(141)
        except Exception as error:
            sys.exit(report_error(error))
    if status == INTERRUPTED:
        status = report_stop(received.status)
    sys.exit(status)
