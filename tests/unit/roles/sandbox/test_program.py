"""What a program may and may not do in the sandbox. The kernel is real, and so are the attacks."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from roles.sandbox.confined import NOT_CONFINED
from roles.sandbox.program import ROOT, START, Ending, Limits, Outcome, run_program, why_unavailable
from roles.sandbox.seccomp import JUMP_EQUAL, JUMP_SET, Starts, build_filter

pytestmark = pytest.mark.skipif(why_unavailable() is not None, reason=str(why_unavailable()))
QUICK = Limits(cpu_seconds=1, wall_seconds=20.0)
PATIENT = Limits(cpu_seconds=10, wall_seconds=20.0)
"""Generous limits: on a virtual machine the first touch of memory can cost as much as much other work."""


def run(source: str, *, given: bytes = b"", limits: Limits = QUICK) -> Outcome:
    return run_program(source, given=given, limits=limits)


def test_run_program__reads_input_and_writes_output() -> None:
    assert run("print(int(input()) + 1)", given=b"41\n") == Outcome(Ending.DONE, b"42\n", "")


def test_run_program__has_the_standard_library_and_threads() -> None:
    source = """
        import bisect, collections, decimal, fractions, functools, heapq, itertools, json, math, random, re, string, threading
        threads = [threading.Thread(target=lambda: None) for _ in range(4)]
        [thread.start() for thread in threads], [thread.join() for thread in threads]
        print(math.comb(10, 3), fractions.Fraction(1, 3))
    """
    assert run("if 1:" + source).output == b"120 1/3\n"


def test_run_program__hashes_are_the_same_on_every_run() -> None:
    assert len({run("print(hash('a'), list({'a', 'b', 'c', 'd'}))").output for _ in range(3)}) == 1


def test_run_program__error_is_told_with_its_cause() -> None:
    outcome = run("print('so far')\n1 / 0")
    assert (outcome.ending, outcome.output) == (Ending.FAILED, b"so far\n")
    assert "ZeroDivisionError" in outcome.errors


def test_run_program__text_that_is_no_unicode_costs_that_program_only() -> None:
    assert run("print('\ud800')").ending is Ending.FAILED
    assert run("\0").ending is Ending.FAILED


REFUSED = {
    "read_a_file_of_the_system": "open('/etc/passwd').read()",
    "list_the_home_folder": "import os, sys; os.listdir('/root' if os.path.exists('/root') else '/home')",
    "read_another_process": "import os; open(f'/proc/{os.getppid()}/environ').read()",
    "read_its_own_memory_map": "open('/proc/self/maps').read()",
    "write_in_tmp": "open('/tmp/made-by-a-program', 'w').write('x')",
    "make_a_folder": "import os; os.mkdir('/tmp/made-by-a-program')",
    "write_in_shared_memory": "open('/dev/shm/made-by-a-program', 'w').write('x')",
    "write_in_the_library": "import os; open(os.__file__, 'a').write('x')",
    "delete_a_file": "import os; os.unlink(os.__file__)",
    "anonymous_file": "import os; os.write(os.memfd_create('x'), b'x')",
    "open_a_socket": "import socket; socket.socket().connect(('127.0.0.1', 80))",
    "open_a_unix_socket": "import socket; socket.socket(socket.AF_UNIX)",
    "resolve_a_name": "import socket; socket.getaddrinfo('localhost', 80)",
    "fork": "import os; os.fork()",
    "start_a_program": "import subprocess; subprocess.run(['/bin/ls'])",
    "become_a_program": "import os; os.execv('/bin/ls', ['ls'])",
    "spawn_through_multiprocessing": "import multiprocessing; multiprocessing.Process(target=print).start()",
    "signal_its_parent": "import os; os.kill(os.getppid(), 9)",
    "signal_everybody": "import os; os.kill(-1, 9)",
    "raise_its_limits": "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))",
    "lower_the_limits_of_its_parent": "import os, resource; resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))",
    "trace_its_parent": "import ctypes, os; libc = ctypes.CDLL(None, use_errno=True)\n"
    "assert libc.ptrace(16, os.getppid(), 0, 0) == 0, ctypes.get_errno()",
    "have_a_file_signal_somebody": "import fcntl, os; fcntl.fcntl(0, fcntl.F_SETOWN, os.getppid())",
    "choose_the_signal_of_a_file": "import fcntl; fcntl.fcntl(0, 10, 9)",
    "ask_a_file_for_signals": "import fcntl, os; fcntl.fcntl(0, fcntl.F_SETFL, os.O_ASYNC)",
    "ask_a_file_for_signals_by_ioctl": "import fcntl; fcntl.ioctl(0, 0x5452, b'\\1\\0\\0\\0')",
    "lock_a_file": "import fcntl, os; fcntl.lockf(open(os.__file__), fcntl.LOCK_SH)",
    "grow_a_pipe": "import fcntl, os; fcntl.fcntl(os.pipe()[0], 1031, 2**20)",
    "make_a_namespace": "import ctypes; assert ctypes.CDLL(None).unshare(0x10000000) == 0",
    "become_somebody_else": "import os; os.setuid(65534)",
    "change_the_root": "import os; os.chroot('/tmp')",
    "mount": "import ctypes; assert ctypes.CDLL(None).mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0",
    "more_open_files_than_it_may": "import os; [os.pipe() for _ in range(100)]",
    "take_all_memory": "x = bytearray(10**10)",
    "take_all_memory_in_pieces": "x = []\nwhile True: x.append(bytearray(10**7))",
    "thread_bomb": "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(9,), daemon=True).start()",
}


@pytest.mark.parametrize("source", REFUSED.values(), ids=REFUSED.keys())
def test_run_program__refuses_to__box_03(source: str) -> None:
    """BOX-01, BOX-03: each ends with an error inside, and leaves nothing outside."""
    outcome = run(source, limits=PATIENT)
    assert outcome.ending is Ending.FAILED
    assert outcome.output == b""
    assert not any(Path(folder, "made-by-a-program").exists() for folder in ("/tmp", "/dev/shm"))  # noqa: S108


COUNT_THREADS = """
import _thread, os, time
_thread.stack_size(32768)
started = 0
try:
    while started < 3000:
        _thread.start_new_thread(time.sleep, (9,))
        started += 1
except RuntimeError:
    pass
print(started, flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("most", [0, 8, 256])
def test_run_program__threads_are_counted(most: int) -> None:
    """Small ones fit into the memory limit by the thousand, because the kernel's memory for each is not counted."""
    assert run(COUNT_THREADS, limits=Limits(cpu_seconds=10, threads=most)).output == f"{most}\n".encode()


def test_run_program__a_thread_with_a_larger_stack_recurses_far() -> None:
    source = """
        import sys, threading
        sys.setrecursionlimit(10**6), threading.stack_size(2**27)
        def depth(n): return 0 if n == 0 else 1 + depth(n - 1)
        thread = threading.Thread(target=lambda: print(depth(50_000)))
        thread.start(), thread.join()
    """
    assert run("if 1:" + source, limits=PATIENT).output == b"50000\n"


def test_run_program__loop_ends_at_its_cpu_time() -> None:
    assert run("while True: pass").ending is Ending.OUT_OF_TIME


def test_run_program__endless_recursion_ends_at_a_limit() -> None:
    outcome = run("import sys; sys.setrecursionlimit(10**9)\ndef f(): f()\nf()")
    assert outcome.ending in (Ending.FAILED, Ending.OUT_OF_TIME)


def test_run_program__sleep_ends_at_its_wall_time() -> None:
    assert run("import time; time.sleep(60)", limits=Limits(wall_seconds=0.5)).ending is Ending.OUT_OF_TIME


def test_run_program__closing_its_output_does_not_win_time() -> None:
    source = "import os, time; os.close(1); os.close(2); time.sleep(60)"
    assert run(source, limits=Limits(wall_seconds=0.5)).ending is Ending.OUT_OF_TIME


def test_run_program__flood_ends_at_its_output_limit() -> None:
    outcome = run("while True: print('x' * 1000)", limits=Limits(output=5000))
    assert (outcome.ending, len(outcome.output)) == (Ending.FLOODED, 5000)


def test_run_program__flood_of_errors_is_not_kept() -> None:
    outcome = run("import sys\nfor _ in range(1000): sys.stderr.write('x' * 1000)")
    assert outcome.ending is Ending.DONE
    assert len(outcome.errors) <= 2048


def test_run_program__unread_input_is_no_fault() -> None:
    assert run("print(1)", given=b"x" * 2**20).output == b"1\n"


LOOK_ROUND = """
import os
def is_open(number):
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
print("INTELLECT_SECRET" in os.environ, [number for number in range(3, 30) if is_open(number)])
"""


def test_run_program__sees_no_environment_and_no_open_file__box_01(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTELLECT_SECRET", "s3cret")
    with socket.socket() as ours:
        os.set_inheritable(ours.fileno(), True)
        outcome = run(LOOK_ROUND)
    assert outcome.output == b"False []\n"


def test_main__whose_parent_has_ended_runs_nothing(tmp_path: Path) -> None:
    (tmp_path / "program").write_text("print('ran')")
    with (tmp_path / "program").open() as program:
        number = program.fileno()
        told = map(str, (number, number, 2**29, 1, os.getppid()))  # of somebody else
        command = [sys.executable, "-s", "-S", "-P", "-B", "-c", START, *told, ROOT]
        done = subprocess.run(command, capture_output=True, pass_fds=(number,), check=False)
    assert (done.returncode, done.stdout) == (NOT_CONFINED, b"")
    assert b"has ended" in done.stderr


SIGNAL_BY_A_FILE = """
import fcntl, os, sys
from roles.sandbox.confined import confine
confine(parent=int(sys.argv[1]), memory=2**29, newest_landlock=5)
inward, outward = os.pipe()
def try_to(act, *arguments):
    try:
        act(*arguments)
    except OSError:
        print("refused")
try_to(fcntl.fcntl, inward, fcntl.F_SETOWN, int(sys.argv[2]))
try_to(fcntl.fcntl, inward, 10, 9)
try_to(fcntl.fcntl, inward, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
fcntl.fcntl(inward, fcntl.F_SETFL, os.O_NONBLOCK)
os.write(outward, b"x")
"""


def test_confine__where_landlock_holds_no_signals_a_file_sends_none() -> None:
    """Up to ABI 5, only the list of system calls protects the other processes of the user from a program."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as victim:
        told = [sys.executable, "-c", SIGNAL_BY_A_FILE, str(os.getpid()), str(victim.pid)]
        # coverage would write at the process's end
        bare = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
        done = subprocess.run(told, capture_output=True, check=False, env={**bare, "PYTHONPATH": ROOT})
        assert (done.stdout, done.stderr, victim.poll()) == (b"refused\n" * 3, b"", None)
        victim.communicate(b"\n")
    assert victim.returncode == 0


def test_run_program__too_large_is_refused_before_it_runs() -> None:
    with pytest.raises(ValueError, match="at most 262144 bytes"):
        run("#" * 300_000)
    with pytest.raises(ValueError, match="its input 4194304"):
        run("", given=b"x" * (4 * 2**20 + 1))


def test_run_program__dies_with_its_parent() -> None:
    source = "from roles.sandbox.program import *; run_program('import time; print(1, flush=True); time.sleep(60)')"
    parent = subprocess.Popen([sys.executable, "-c", source], env={**os.environ, "PYTHONPATH": os.getcwd()})
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    while not (child := children.read_text().split()):
        assert parent.poll() is None
    parent.kill()
    parent.wait()
    while Path(f"/proc/{child[0]}/exe").exists():
        pass  # the test's own time limit is the bound


@pytest.mark.parametrize("starts", Starts)
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_build_filter__jumps_stay_inside(machine: str, starts: Starts) -> None:
    lines = build_filter(machine, 4242, starts)
    jumps = [(at, max(line[1:3])) for at, line in enumerate(lines) if line[0] in (JUMP_EQUAL, JUMP_SET)]
    assert all(at + 1 + far < len(lines) for at, far in jumps)


def test_build_filter__unknown_machine_is_refused() -> None:
    with pytest.raises(OSError, match="riscv64"):
        build_filter("riscv64", 1)
