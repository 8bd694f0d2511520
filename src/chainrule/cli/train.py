"""`chainrule train`: from data to a run."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typing_extensions import Doc

from chainrule.cli.options import Json, On, errors, importing_torch, output, print_json, print_scores, print_table
from chainrule.errors import ConfigError
from chainrule.options import TrainOptions, train_request
from chainrule.training.process import launched

if TYPE_CHECKING:
    from chainrule.tasks import Run

Command = Callable[..., None]


def with_options(declared: type) -> Callable[[Command], Command]:
    """Give a command with a `**options` parameter one option for each field of a TypedDict."""

    def decorate(command: Command) -> Command:
        own = list(inspect.signature(command, eval_str=True).parameters.values())[:-1]  # all but **options
        arguments = [one for one in own if one.kind is not inspect.Parameter.KEYWORD_ONLY]
        declarations = get_type_hints(declared, include_extras=True).items()
        parameters = [*arguments, *(_option(name, hint) for name, hint in declarations), *own[len(arguments) :]]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return command

    return decorate


def _option(name: str, hint: Any) -> inspect.Parameter:
    """The parameter of a field: Annotated[type, Doc(help)]."""
    [doc] = [note for note in hint.__metadata__ if isinstance(note, Doc)]
    flag = hint.__origin__ is bool
    names = (f"--{name.replace('_', '-')}",) if flag else ()  # without --no-NAME
    option = typer.Option(*names, help=doc.documentation, show_default=False)
    kind, default = inspect.Parameter.KEYWORD_ONLY, False if flag else None
    return inspect.Parameter(name, kind, annotation=Annotated[hint.__origin__, option], default=default)


@with_options(TrainOptions)
def train(
    family: Annotated[str, typer.Argument(help="ngram, gpt, …; see `chainrule models`.", show_default=False)],
    *,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Any other setting, for example --set model.order=7 --set train.batch_tokens=4096. Repeatable; "
            "`chainrule models FAMILY` lists all settings.",
            show_default=False,
        ),
    ] = None,
    on: On = None,
    json: Json = False,
    **options: Any,
) -> None:
    """Train a model of a FAMILY on your data.

    Without a budget, a neural family trains for 5 minutes and a count model makes one pass. Ctrl-C saves a checkpoint
    and stops; the same command with --resume continues exactly where it stopped. The workers of --on encode a large
    text, count n-grams with --memory, and translate for --distil-from. Examples:

        chainrule train ngram --data my.txt --set model.order=5 --out runs/ngram

        chainrule train gpt --data my.txt --minutes 10 --out runs/gpt

        chainrule train transformer --source my.en --target my.de --tokenizer bpe:8000 --out runs/en-de
    """
    train_request(family, options, overrides=set_ or [])  # mistakes are found before torch is imported
    if on is not None and launched().world > 1:
        raise ConfigError("--on is for one process; encode the data before by: chainrule data … --on, and leave it out")
    with importing_torch(options["threads"]):
        import chainrule.api
        from chainrule.data.cluster import working_at
        from chainrule.training.progress import console_reporter

    with working_at(on):
        run = chainrule.train(family, overrides=set_ or [], reporter=console_reporter(errors), **options)
    if json:
        print_json(run.info())
    else:
        _report(run)


def _report(run: Run) -> None:
    about = run.info()
    outcome = run.outcome
    if outcome is not None and outcome.reason == "stopped":
        output.print(f"stopped at step {outcome.step:,} and saved; the same command with --resume continues")
    elif outcome is not None and outcome.reason == "patience":
        output.print(f"stopped early at step {outcome.step:,}; the best validation was at step {outcome.best_step:,}")
    elif outcome is not None and outcome.reason == "complete":
        output.print("the run is already complete; give it a larger budget to continue")
    rows = {"family": about["family"], "parameters": about["parameters"], "vocabulary": about["vocabulary"]}
    if outcome is not None:
        rows |= {"steps": outcome.step, "training tokens": outcome.tokens, "seconds": round(outcome.seconds, 1)}
    print_table(rows | run.summary_rows())
    print_scores(about)
    output.print(f"\n[green]{run.path}[/green]  next: {run.use.format(run=run.path)}", highlight=False, soft_wrap=True)
