"""`chainrule info`: describe a run."""

from __future__ import annotations

from chainrule.cli.options import Json, RunPath, open_run, print_json, print_scores, print_table


def info(run: RunPath, json: Json = False) -> None:
    """Describe a run: family, number of parameters, vocabulary, data, training time and scores.

    For example

        chainrule info runs/first
    """
    opened = open_run(run, device="cpu")
    about = opened.info()
    if json:
        print_json(about)
        return
    tables = ("validation", "test", "cleaning", "bleu")
    print_table({name: value for name, value in about.items() if name not in tables} | opened.summary_rows())
    print_scores(about)
