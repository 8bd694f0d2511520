"""`chainrule data`: what is understood of data before anything is trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chainrule.cli.options import Json, On, errors, output, print_json, print_table, show

if TYPE_CHECKING:
    from chainrule.config import DataConfig


def data(
    data: Annotated[str, typer.Argument(metavar="DATA", help="As for `train --data`.", show_default=False)],
    task: Annotated[
        str | None,
        typer.Option(
            help="text, translation, labels, tags, answers or images. Default: recognised by the format.",
            show_default=False,
        ),
    ] = None,
    source: Annotated[
        str | None, typer.Option(help="Translation: the source text of DATA, line by line.", show_default=False)
    ] = None,
    valid: Annotated[str | None, typer.Option(help="Validation data.", show_default=False)] = None,
    tokenizer: Annotated[str, typer.Option(help="Tokenizer, as for `chainrule train`.")] = "chars",
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Setting of the data, such as data.unit=documents or data.valid_from=spread. Repeatable.",
            show_default=False,
        ),
    ] = None,
    on: On = None,
    json: Json = False,
) -> None:
    """Show how data is read, before anything is trained on it.

    Task and format as recognised, counts of documents, lines, characters, bytes and words, the training, validation and
    test splits, a sample after tokenization, odd bytes and characters, what is in both training and validation data,
    and how the end of the data differs from the rest. For pairs, labels, tags, questions and images: columns, counts
    of labels and tags, lengths, first examples. The encoded text stays in the cache, where `train` finds it if it has
    the same tokenizer and data settings. For example

        chainrule data my.txt --tokenizer bpe:8000
    """
    from chainrule.data.cluster import working_at
    from chainrule.data.overview import file_facts, overview
    from chainrule.data.recognition import recognise_task
    from chainrule.errors import DataError
    from chainrule.training.progress import console_reporter

    config = _config(data, source, valid, set_ or [])
    chosen = task or recognise_task(config)
    reporter = console_reporter(errors, announce_after=1.0)
    facts = {}
    try:
        facts = file_facts(config, chosen, reporter.preparing)
        with working_at(on):
            found = overview(config, tokenizer, chosen, reporter.preparing)
    except DataError:
        if not json and facts:
            print_table({"data": data, "task": chosen, **facts})
        raise
    finally:
        reporter.end()
    head = {name: value for name, value in found.items() if not isinstance(value, dict | list) or "median" in value}
    rest = {name: value for name, value in found.items() if name not in head}
    if json:
        print_json({**head, **facts, **rest})
    else:
        _print(head | facts, rest)


def _config(data: str, source: str | None, valid: str | None, overrides: list[str]) -> DataConfig:
    from chainrule.config import DataConfig, apply_overrides
    from chainrule.errors import ConfigError

    values = {"train": data, "source": source, "valid": valid}
    tree = apply_overrides({"data": {name: value for name, value in values.items() if value is not None}}, overrides)
    if other := sorted(tree.keys() - {"data"}):
        raise ConfigError(f"--set {other[0]}.… is not a setting of the data; give data.KEY=VALUE")
    return DataConfig.parse(tree["data"], where="data")


def _print(head: Mapping[str, Any], rest: Mapping[str, Any]) -> None:
    """Facts, then a table for each group of counts, then lists."""
    print_table({key: _one_line(one) for key, one in head.items()})
    for name, value in rest.items():
        if not value:
            continue
        output.print()
        if isinstance(value, dict):
            print_table({key: _one_line(one) for key, one in value.items()}, title=f"[bold]{_words(name)}[/bold]")
            continue
        output.print(f"[bold]{_words(name)}[/bold]")
        if name == "sample":
            output.print("|".join(map(_visible, value)), markup=False, highlight=False)
        else:
            for line in value:
                output.print(f"- {line}", markup=False, highlight=False, soft_wrap=True)


def _words(name: str) -> str:
    return name.replace("_", " ")


def _one_line(value: Any) -> Any:
    """Counts with their names, and where they come from: `900 documents, 5,000 bytes, the last 0.1 of my.txt`."""
    if not isinstance(value, dict):
        return value
    if "median" in value:
        return f"{show(value['shortest'])} to {show(value['longest'])}, median {value['median']:g}"
    counts = [f"{show(count)} {_words(name)}" for name, count in value.items() if name != "data"]
    return ", ".join([*counts, str(value.get("data", ""))])


def _visible(piece: str) -> str:
    return piece.replace("\n", "⏎").replace("\t", "⇥") or "<eos>"
