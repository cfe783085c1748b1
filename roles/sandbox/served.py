"""What runs inside a `ConfinedFunction`: import one function, give up every right, answer calls. One JSON line each way."""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import TextIO

from roles.sandbox.confined import NOT_CONFINED, confine


def main() -> None:
    """Arguments: `module:function`, bytes of memory, the process that started us, and what may be read besides the standard
    library."""
    place, memory, parent, *readable = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what the function prints is nobody's answer
    module, _, name = place.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except Exception as error:
        _say(answers, {"error": f"{type(error).__name__}: {error}"[:500]})
        return
    try:
        confine(parent=int(parent), memory=int(memory), readable=readable)
    except OSError as error:
        os.write(2, f"cannot be confined: {error}".encode())
        os._exit(NOT_CONFINED)
    _say(answers, {"value": "ready"})
    for line in sys.stdin:
        try:
            _say(answers, {"value": function(*json.loads(line))})
        except (Exception, SystemExit) as error:  # whatever hostile text makes of the function
            _say(answers, {"error": f"{type(error).__name__}: {error}"[:500]})


def _say(answers: TextIO, answer: dict[str, object]) -> None:
    print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
