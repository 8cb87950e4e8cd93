"""Programs against their tests: right ones, wrong ones, and those that try to get away with it."""

import ast
import gzip
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("pyseccomp")

from rlhf_jax.errors import ConfigError
from rlhf_jax.rewards.code import code, program_of
from rlhf_jax.rewards.compose import score_completions

LIMITS = {"seconds": 6.0, "cpu_seconds": 2}
CHECK = "def check(candidate):\n    assert candidate(3) == 27\n    assert candidate(2) == 8\n"
CUBE = {"tests": CHECK, "entry_point": "cube"}


@pytest.fixture(scope="module", autouse=True)
def _walls():
    try:
        code(["?"], ["x = 1"], [{"tests": "assert x == 1"}], **LIMITS)
    except ConfigError as error:
        if "only run where the kernel" not in str(error):
            raise
        pytest.skip(str(error))


def score(program, row=CUBE):
    return code(["?"], [program], [row], **LIMITS)[0]


def body(text):
    return f"import os, sys\ndef cube(x):\n    {text}\n"


LIES = {
    "exit": "import sys\nsys.exit(0)\n" + body("return x"),
    "exit_in_a_call": body("sys.exit(0)"),
    "exit_code_0_at_once": "import os\nos._exit(0)",
    "exit_code_0_in_a_call": body("os._exit(0)"),
    "prints_passed": "print('passed')\nprint('{\"passed\": true}')\n" + body("return 0"),
    "equals_everything": "class E:\n    def __eq__(s, o): return True\n" + body("return E()"),
    "number_that_equals": "class E(int):\n    def __eq__(s, o): return True\n    __hash__ = None\n"
    + body("return E(0)"),
    "patched_asserts": "import builtins, unittest\nbuiltins.AssertionError = None\n"
    "builtins.exec = builtins.compile = lambda *a: None\n"
    "unittest.TestCase.assertEqual = lambda *a: None\n" + body("return 0"),
    "own_check": "def check(candidate): pass\n" + body("return 0"),
    "writes_a_verdict": "import os\nfor fd in range(64):\n"
    "    try: os.write(fd, b'{\"passed\": true}\\n')\n    except OSError: pass\n"
    + body("return 0"),
    "tests_in_a_frame": body(
        "f = sys._getframe()\n    while f:\n"
        "        if 'cube' in repr(f.f_locals.get('item')): return x**3\n"
        "        f = f.f_back\n    return 0"
    ),
    "tests_in_memory": "import gc\nparts = ['candi', 'date(3)']\n"
    + body("return x**3 if any(''.join(parts) in repr(o) for o in gc.get_objects()) else 0"),
    "callers_environment": body("return x**3 if os.environ['RLHF_SECRET'] else 0"),
    "callers_environment_in_proc": body("os.listdir('/proc')\n    return x**3"),
    "reads_a_file": body("open('/etc/passwd').read()\n    return x**3"),
    "writes_a_file": body("open('/usr/lib/x', 'w').write('x')\n    return x**3"),
    "network": body("import socket\n    socket.socket()\n    return x**3"),
    "fork_bomb": body("while True: os.fork()"),
    "shell": body("return int(os.popen('echo 27').read())"),
    "compose_rl_87_infinite_loop": body("while True: pass"),
    "huge_output": body("print('x' * 10**8)\n    return x**3"),
    "huge_memory": body("bytearray(10**11)\n    return x**3"),
    "huge_answer": body("return 'x' * 10**9"),
    "fills_the_disk": body(
        "for i in range(99): open(f'/scratch/{i}', 'wb').write(b'x' * 10**6)\n    return x**3"
    ),
    "endless_recursion": body("sys.setrecursionlimit(10**9)\n    return cube(x)"),
    "endless_threads": body(
        "import threading, time\n"
        "    while True: threading.Thread(target=time.sleep, args=(9,)).start()"
    ),
    "kills_everyone": body("os.kill(-1, 9)\n    return 0"),
    "leaves_the_walls": body(
        "import ctypes\n    return x**3 if ctypes.CDLL(None).unshare(0x10000000) == 0 else 0"
    ),
    "wrong": body("return x**2"),
    "raises": body("raise ValueError"),
    "no_python": "def cube(x: return",
    "other_name": "def square(x): return x**3",
    "empty": "",
}


def test_lies_score_0_and_harm_nothing(monkeypatch):
    monkeypatch.setenv("RLHF_SECRET", "1")
    before = {p for p in os.listdir("/proc") if p.isdigit()}
    programs = [body("return x**3"), *LIES.values(), body("return x**3")]
    began = time.monotonic()
    scores = code(["?"] * len(programs), programs, [CUBE] * len(programs), **LIMITS)
    assert scores[0] == scores[-1] == 1
    assert [name for name, one in zip(LIES, scores[1:-1], strict=True) if one != 0] == []
    assert time.monotonic() - began < 120
    assert not Path("/usr/lib/x").exists()
    left = [p for p in os.listdir("/proc") if p.isdigit() and p not in before]
    texts = [Path(f"/proc/{p}/cmdline") for p in left]
    assert sum(b"code_work" in t.read_bytes() for t in texts if t.exists()) <= 2 * os.cpu_count()


def test_a_sleeper_is_killed_and_its_neighbours_are_not():
    programs = [body("return x**3"), body("__import__('time').sleep(1000)"), body("return x**3")]
    found = score_completions([code_quickly], None, ["?"] * 3, programs, [CUBE] * 3)
    assert found.score_BC[:, 0].tolist() == [1, 0, 1]
    assert found.numbers["reward_timeouts/code_quickly"] == 1


def code_quickly(prompts, completions, rows):
    return code(prompts, completions, rows, seconds=2.0, cpu_seconds=2)


@pytest.mark.parametrize(
    ("program", "tests"),
    [
        ("def f(xs): xs.append(3)", "xs = [1]\nf(xs)\nassert xs == [1, 3]"),
        ("def f(g, x): return g(g(x))", "assert f(lambda x: x + 1, 1) == 3"),
        (
            "def f(): return (1, 2.0, {3}, {'a': (4,)}, None, b'x', 1j)",
            "assert f() == (1, 2.0, {3}, {'a': (4,)}, None, b'x', 1j)\n"
            "assert type(f()[1]) is float",
        ),
        ("def f(n):\n    for i in range(n): yield i", "assert list(f(3)) == [0, 1, 2]"),
        (
            "def f(x):\n    if x < 0: raise ValueError('negative')",
            "try: f(-1)\nexcept ValueError as e: assert 'negative' in str(e)\nelse: assert False",
        ),
        (
            "class Stack:\n    def __init__(s): s.xs = []\n    def push(s, x): s.xs.append(x)\n"
            "    def pop(s): return s.xs.pop()\n    def __len__(s): return len(s.xs)",
            "s = Stack()\ns.push(4)\nassert len(s) == 1 and s.xs == [4] and s.pop() == 4",
        ),
        (
            "import datetime, decimal, fractions, collections\n"
            "def f(): return [datetime.date(2020, 1, 2), decimal.Decimal('1.5'),"
            " fractions.Fraction(1, 3), collections.Counter('aab'), collections.deque([1], 2)]",
            "import datetime, decimal, fractions, collections\n"
            "assert f() == [datetime.date(2020, 1, 2), decimal.Decimal('1.5'),"
            " fractions.Fraction(1, 3), collections.Counter('aab'), collections.deque([1], 2)]",
        ),
        ("def f(x): return x + 1", ["assert f(1) == 2", "assert f(2) == 3"]),
        ("def f(x): return x + 1", "def test_one():\n    assert f(1) == 2"),
        (
            "def f(x): return x + 1",
            "import unittest\nclass T(unittest.TestCase):\n"
            "    def test(self): self.assertEqual(f(1), 2)",
        ),
        (
            "from concurrent.futures import ThreadPoolExecutor\n"
            "def f(xs):\n    with ThreadPoolExecutor(2) as p: return list(p.map(abs, xs))",
            "assert f([-1, 2]) == [1, 2]",
        ),
        (
            "import tempfile\ndef f():\n    with tempfile.TemporaryFile() as t:\n"
            "        t.write(b'ab')\n        t.seek(0)\n        return t.read()",
            "assert f() == b'ab'",
        ),
        (
            "import numpy as np\ndef f(x): return np.int64(x) ** 2, np.arange(3)",
            "a, b = f(3)\nassert a == 9 and b.tolist() == [0, 1, 2]",
        ),
        ("import math\ndef f(x): return math.sqrt(x)", "assert math.isclose(f(4), 2)"),
        (
            "def f(): return float('nan'), float('inf'), 10**5000",
            "a, b, c = f()\nassert a != a and b > 1e308 and c == 10**5000",
        ),
    ],
)
def test_what_tests_may_do(program, tests):
    assert score(program, {"tests": tests}) == 1
    wrong = program.replace("def f(", "def f_(") + "\ndef f(*args): return 0\nclass Stack: pass"
    assert score(wrong, {"tests": tests}) == 0


def test_an_object_of_the_programs_own_equals_nothing_else():
    program = "class A:\n    def __eq__(s, o): return True\na = A()"
    assert score(program, {"tests": "assert a is not None\nassert a == a\nassert a != 3"}) == 1


def test_helpers_of_the_task_are_not_the_answers():
    starter = "def poly(xs, x):\n    return sum(c * x**i for i, c in enumerate(xs))\n"
    row = {"starter": starter, "tests": "assert poly([1, 2], f([1, 2])) == 0", "entry_point": "f"}
    assert score("def f(xs): return -xs[0] / xs[1]", row) == 1
    assert score("def poly(xs, x): return 0\ndef f(xs): return 5", row) == 0


def test_the_head_of_a_function_may_be_given():
    row = {**CUBE, "starter": 'def cube(x):\n    """The third power."""\n'}
    assert score("    return x**3", row) == 1 and score("    return x", row) == 0
    assert score("def cube(x):\n    return x**3", row) == 1


REFUSED = """
import errno, pyseccomp
rules = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
rules.add_rule(pyseccomp.ERRNO(errno.EPERM), "unshare")  # as in a container
rules.load()
from rlhf_jax.errors import ConfigError
from rlhf_jax.rewards.code import code
try:
    code(["?"], ["x = 1"], [{"tests": "assert x == 1"}])
except ConfigError as error:
    print(error)
"""


def test_a_kernel_without_the_walls_is_refused_plainly():
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run([sys.executable, "-c", REFUSED], env=env, capture_output=True, text=True)
    assert "unshare failed (Operation not permitted); code is only run where" in found.stdout
    assert "--privileged" in found.stdout and "Traceback" not in found.stderr


@pytest.mark.parametrize("tests", [None, "", "   ", [], [1], 3, "def check(:"])
def test_without_tests_there_is_no_score(tests):
    found = score_completions([code], None, ["?"], ["x = 1"], [{"tests": tests}])
    assert not found.valid_BC.any() and found.numbers["reward_unreadable_gold/code"] == 1


@pytest.mark.parametrize(
    ("completion", "program"),
    [
        ("x = 1", "x = 1"),
        ("Here:\n```python\nx = 1\n```\nDone.", "x = 1\n"),
        ("```\nx = 1\n```\nbetter:\n```py\nx = 2\n```", "x = 2\n"),
        ("```python\nx = 1\n```\nRun it:\n```bash\nls\n```", "x = 1\n"),
        ("```bash\nls\n```", None),
        ("<think>```python\nx = 1\n```</think>```python\nx = 2\n```", "x = 2\n"),
        ("<think>x = 1", None),
    ],
)
def test_which_part_is_the_program(completion, program):
    assert program_of(completion) == program


def shared(*parts):
    folder = os.environ.get("RLHF_JAX_SHARED", Path(__file__).parents[3] / "shared")
    file = Path(folder, "data", *parts)
    if not file.exists():
        pytest.skip(f"{file} is not there; set RLHF_JAX_SHARED")
    return file


def test_humaneval_solutions_pass_and_mutated_ones_fail():
    with gzip.open(shared("humaneval", "HumanEval.jsonl.gz"), "rt") as lines:
        tasks = [json.loads(line) for line in lines]
    rows = [
        {"starter": t["prompt"], "tests": t["test"], "entry_point": t["entry_point"]} for t in tasks
    ]
    right = [t["canonical_solution"] for t in tasks]
    assert code(["?"] * 164, right, rows) == [1.0] * 164
    # the same solution, and then every value it returns is another one
    wrong = [
        f"{text}\n_right = {t['entry_point']}\ndef {t['entry_point']}(*args):\n"
        "    return [_right(*args), 0]\n"
        for text, t in zip(right, tasks, strict=True)
    ]
    assert code(["?"] * 41, wrong[::4], rows[::4]) == [0.0] * 41


def oracle(task, *, wrong=False):
    """A program that knows the expected values of the asserts, the last one wrongly if asked."""
    tests = [n.test for n in ast.walk(ast.parse(task["test"])) if isinstance(n, ast.Assert)]
    lines = [f"def {task['entry_point']}(*args):"]
    for number, test in enumerate(tests, start=1):
        args = ast.unparse(ast.Tuple(test.left.args, ast.Load()))
        is_last = number == len(tests)
        value = "'other'" if wrong and is_last else ast.unparse(test.comparators[0])
        lines.append(f"    if args == {args}: return {value}")
    return "\n".join(lines)


def test_mbpp_tests_pass_on_what_they_expect_and_fail_on_one_other_value():
    tasks = [json.loads(line) for line in shared("mbpp", "mbpp-py.jsonl").read_text().splitlines()]
    rows = [
        {"starter": t["prompt"], "tests": t["test"], "entry_point": t["entry_point"]} for t in tasks
    ]
    assert code(["?"] * 397, [oracle(t) for t in tasks], rows) == [1.0] * 397
    wrong = [oracle(t, wrong=True) for t in tasks[::20]]
    assert code(["?"] * len(wrong), wrong, rows[::20]) == [0.0] * len(wrong)
