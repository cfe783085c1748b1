"""Programs that submit anything but a solution, and the outcome of each. Reuses those of the tests."""

from __future__ import annotations

import json

from roles.sandbox.program import Ending, Limits, run_program
from roles.tasks import Undecided
from roles.tasks.code import Code
from roles.tasks.problems import Problem
from tests.unit.roles.sandbox.test_program import REFUSED
from tests.unit.roles.tasks.test_code import ADD, WRONG

LIMITS = Limits(cpu_seconds=1, wall_seconds=10.0)
EXHAUSTING = {
    "loop": "while True: pass",
    "sleep": "import time; time.sleep(1000)",
    "endless_recursion": "def f(): f()\nimport sys\nsys.setrecursionlimit(10**9)\nf()",
    "endless_threads": "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(99,)).start()",
    "endless_output": "import sys\nwhile True: sys.stdout.write('x' * 10**6)",
    "endless_errors": "import sys\nwhile True: sys.stderr.write('x' * 10**6)",
    "endless_number": "print(9 ** 9 ** 9)",
    "endless_pattern": "import re; re.match('(a+)+$', 'a' * 64 + 'b')",
}
"""Programs that exhaust a machine's resources."""


def list_hostile() -> list[tuple[str, str, str]]:
    """Kind, name, and outcome: "killed", "refused", "no credit" - or "CREDITED"."""
    found = [("reach out", name, _escape(source)) for name, source in REFUSED.items()]
    task = Code((Problem("Do it.", json.dumps(ADD)),), digest="0" * 64, limits=LIMITS)
    found += [("pass for solved", name, _credit(task, source)) for name, source in WRONG.items()]
    return found + [("use up", name, _exhaust(source)) for name, source in EXHAUSTING.items()]


def _escape(source: str) -> str:
    outcome = run_program(source, given=b"", limits=LIMITS)
    return "DONE" if outcome.ending is Ending.DONE else "refused"


def _credit(task: Code, source: str) -> str:
    try:
        return "CREDITED" if task.score(0, f"```python\n{source}\n```") else "no credit"
    except Undecided:
        return "undecided"


def _exhaust(source: str) -> str:
    outcome = run_program(source, given=b"", limits=LIMITS)
    return "DONE" if outcome.ending is Ending.DONE else f"ended: {outcome.ending.name.lower().replace('_', ' ')}"
