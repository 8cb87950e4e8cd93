"""Work that misbehaves, for the tests of `rewards.pool`; imported by its workers."""

import os
import signal
import time

loaded_in = []


class NoException(BaseException):
    pass


def load():
    loaded_in.append(os.getpid())


def enter(options):
    if options.get("refuse"):
        raise RuntimeError(options["refuse"])


def work(item):
    kind, *rest = item
    if kind == "echo":
        return rest[0]
    if kind == "sleep":
        time.sleep(rest[0])
        return "slept"
    if kind == "spin":
        return 9 ** (9**9)  # in C, where no Python handler runs
    if kind == "die":
        os.kill(os.getpid(), signal.SIGSEGV)
    if kind == "raise":
        raise ValueError("this one")
    if kind == "base":
        raise NoException
    if kind == "grow":
        return len(bytearray(1 << 40))
    if kind == "print":
        os.write(1, b'{"value": "forged"}\n')
        print('{"value": "forged"}')
        return "printed"
    if kind == "where":
        return [os.getpid(), os.getppid(), loaded_in[0]]
    if kind == "environment":
        return dict(os.environ)
    if kind == "modules":
        import sys

        return sorted(sys.modules)
    return None
