"""Starts jobs: a process that has imported everything and forks a new process for each request.

`python -m chainrule.comparison.server` reads requests from standard input, one JSON object per line,

    {"id": 1, "folder": "comparison", "job": "gpt", "action": "train", "end": 123.4}

and writes {"id": 1, "pid": 4321} when the process has started and {"id": 1, "status": 0, "memory": 1000} when it has
ended. A process per family isolates its memory, so that peak usage can be measured; confines a crash to that family;
and gives each family its own threads. Importing PyTorch takes seconds of computing time, which forking saves every
job but the first.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import select
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from chainrule.comparison.folder import ComparisonFolder
from chainrule.comparison.job import run_distillation, run_job, run_trial, score_test
from chainrule.deadline import Deadline
from chainrule.errors import ChainruleError, memory_problem
from chainrule.training.process import stop_signals

POLL_SECONDS = 0.05
COMPILER = "torch._dynamo"  # loaded by the first optimizer of a process, for seconds, though nothing is compiled


def serve() -> None:
    """Answer requests until standard input is closed; then stop the jobs that still run."""
    running: dict[int, int] = {}  # process -> request
    pending = b""
    while True:
        ready, _, _ = select.select([0], [], [], POLL_SECONDS)
        if ready:
            received = os.read(0, 1 << 16)
            if not received:
                break
            *lines, pending = (pending + received).split(b"\n")
            for line in lines:
                request = json.loads(line)
                process = os.fork()
                if process == 0:
                    os._exit(_run(ComparisonFolder(Path(request["folder"])), request))
                running[process] = request["id"]
                _answer(id=request["id"], pid=process)
        _report_ended(running)
    for process in running:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGTERM)


def _report_ended(running: dict[int, int]) -> None:
    for process in list(running):
        done, status, usage = os.wait4(process, os.WNOHANG)
        if done:
            scale = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is in bytes on macOS, in KiB elsewhere
            code = os.waitstatus_to_exitcode(status)
            _answer(id=running.pop(process), status=code, memory=usage.ru_maxrss * scale)


def _answer(**values: int) -> None:
    os.write(1, json.dumps(values).encode() + b"\n")


def _run(folder: ComparisonFolder, request: dict[str, Any]) -> int:
    """Run one job in this process and return its exit status. An expected failure is one line in the log, status 2."""
    name = request["job"]
    folder.log_file(name).parent.mkdir(parents=True, exist_ok=True)
    with folder.log_file(name).open("wb") as log, Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    try:
        with stop_signals() as received:
            try:
                deadline = Deadline(request["end"] if request["end"] is not None else math.inf)
                if request["action"] == "trial":
                    run_trial(folder, name)
                elif request["action"] == "distil":
                    run_distillation(folder, name)
                elif request["action"] == "score":
                    score_test(folder, name, deadline)
                else:
                    run_job(folder, name, deadline)
            except KeyboardInterrupt:
                return received.status
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except (ChainruleError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    except Exception as error:
        if (problem := memory_problem(error)) is None:
            traceback.print_exc()
            return 1
        print(problem, file=sys.stderr)
        return 2
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


if __name__ == "__main__":
    importlib.import_module(COMPILER)
    serve()
