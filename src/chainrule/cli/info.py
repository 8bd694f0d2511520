"""`chainrule info`: what is in this folder?"""

from __future__ import annotations

from chainrule.cli.options import Json, RunPath, open_run, print_json, print_scores, print_table


def info(run: RunPath, json: Json = False) -> None:
    """Tell what a run is: family, size, vocabulary, data, how long it trained and how it scores."""
    opened = open_run(run, device="cpu")
    about = opened.info()
    if json:
        print_json(about)
        return
    tables = ("validation", "test", "cleaning", "bleu")
    print_table({name: value for name, value in about.items() if name not in tables} | opened.summary_rows())
    print_scores(about)
