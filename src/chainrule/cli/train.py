"""`chainrule train`: from data to a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chainrule.cli.options import (
    Json,
    Threads,
    errors,
    output,
    pair_rows,
    print_json,
    print_table,
    score_rows,
    use_threads,
)

if TYPE_CHECKING:
    from chainrule.runs import Run


def train(
    family: Annotated[str, typer.Argument(help="ngram, recurrent, gpt …: see `chainrule models`.", show_default=False)],
    data: Annotated[
        str | None,
        typer.Option(
            help="Training text: a file (also .gz .xz .zst .jsonl .parquet), a folder, a glob, - for standard input, "
            "builtin:prose, builtin:python, or hub:NAME[:CONFIG[:SPLIT]]. To translate: pairs in a .tsv or .jsonl, "
            "hub:NAME:CONFIG or builtin:dates. Images: idx, .npz, a folder of PNG or JPEG, builtin:digits.",
            show_default=False,
        ),
    ] = None,
    source: Annotated[
        str | None, typer.Option(help="To translate: the source text, one sentence a line.", show_default=False)
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Its translation, line by line; instead of --data.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; by default runs/FAMILY-1, -2, …", show_default=False)
    ] = None,
    valid: Annotated[
        str | None, typer.Option(help="Validation text, in the same forms as --data.", show_default=False)
    ] = None,
    valid_source: Annotated[
        str | None, typer.Option(help="Validation sources, with --valid-target.", show_default=False)
    ] = None,
    valid_target: Annotated[str | None, typer.Option(help="Their translations.", show_default=False)] = None,
    test_source: Annotated[
        str | None, typer.Option(help="Test sources, scored once at the end.", show_default=False)
    ] = None,
    test_target: Annotated[str | None, typer.Option(help="Their translations.", show_default=False)] = None,
    valid_fraction: Annotated[
        float | None, typer.Option(help="Without --valid: the share cut from the end. Default 0.1.", show_default=False)
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="chars (default), bytes, words, words:10000, words:min=5, bpe:8000, unigram:8000, "
            "sentencepiece:FILE or :8000, jieba, huggingface:FOLDER.",
            show_default=False,
        ),
    ] = None,
    source_tokenizer: Annotated[
        str | None,
        typer.Option(help="A vocabulary for the source alone; by default both sides share one.", show_default=False),
    ] = None,
    distil_from: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="To translate: learn from what this run makes of the training sources, and not from their targets.",
            show_default=False,
        ),
    ] = None,
    start_from: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="Begin with the vocabulary, the settings and the weights of this run: to go on with other data, or "
            "with another family that is built of the same parts.",
            show_default=False,
        ),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Budget in minutes; the schedule follows the clock.", show_default=False)
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Budget in optimizer steps.", show_default=False)] = None,
    epochs: Annotated[float | None, typer.Option(help="Budget in passes over the data.", show_default=False)] = None,
    tokens: Annotated[int | None, typer.Option(help="Budget in training tokens.", show_default=False)] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of all chance. Default 0.", show_default=False)] = None,
    threads: Threads = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, mps or auto.", show_default=False)] = None,
    config: Annotated[
        Path | None, typer.Option(help="A TOML file, like the config.toml of a run.", show_default=False)
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Any setting, for example --set model.order=7 --set train.batch_tokens=4096. May be repeated.",
            show_default=False,
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the run in --out stopped.")] = False,
    json: Json = False,
) -> None:
    """Train a model of a FAMILY on your data.

    Without a budget a neural family trains for 5 minutes; a count model takes one pass. Ctrl-C saves and stops, and
    the same command with --resume goes on exactly where it was. Three examples:

        chainrule train ngram --data my.txt --set model.order=5 --out runs/ngram

        chainrule train gpt --data my.txt --minutes 10 --out runs/gpt

        chainrule train transformer --source my.en --target my.de --tokenizer bpe:8000 --out runs/en-de
    """
    use_threads(threads)
    import chainrule
    from chainrule.training.progress import LiveLine

    run = chainrule.train(
        family,
        data=data,
        source=source,
        target=target,
        valid=valid,
        valid_source=valid_source,
        valid_target=valid_target,
        valid_fraction=valid_fraction,
        test_source=test_source,
        test_target=test_target,
        tokenizer=tokenizer,
        source_tokenizer=source_tokenizer,
        distil_from=distil_from,
        start_from=start_from,
        out=out,
        minutes=minutes,
        steps=steps,
        epochs=epochs,
        tokens=tokens,
        seed=seed,
        threads=threads,
        device=device,
        config=config,
        overrides=set_ or [],
        resume=resume,
        reporter=LiveLine(errors),
    )
    if json:
        print_json(run.info())
    else:
        _report(run)


def _report(run: Run) -> None:
    about = run.info()
    outcome = run.outcome
    if outcome is not None and outcome.reason == "stopped":
        output.print(f"stopped at step {outcome.step:,} and saved; the same command with --resume goes on")
    elif outcome is not None and outcome.reason == "patience":
        output.print(f"stopped early at step {outcome.step:,}: step {outcome.best_step:,} was best")
    elif outcome is not None and outcome.reason == "complete":
        output.print("the run was complete already; give it a larger budget to go on")
    rows = {"family": about["family"], "parameters": about["parameters"], "vocabulary": about["vocabulary"]}
    if outcome is not None:
        rows |= {"steps": outcome.step, "training tokens": outcome.tokens, "seconds": round(outcome.seconds, 1)}
    print_table(rows | pair_rows(about))
    for split in ("validation", "test"):
        if about[split] is not None:
            output.print()
            print_table(score_rows(about[split]), title=f"[bold]{split}[/bold]: {about[split]['data']}")
    output.print(f"\n[green]{run.path}[/green]  next: {run.use.format(run=run.path)}", highlight=False, soft_wrap=True)
