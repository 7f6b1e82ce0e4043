"""A process that is forked off a test."""

from __future__ import annotations

import json
import os
import select
import signal
import traceback
import warnings
from collections.abc import Callable
from typing import Any

_SECONDS = 30


def in_child(action: Callable[[], object]) -> Any:
    """What ``action`` returns, as JSON has it, in a process that is forked off this one.

    Raises:
        AssertionError: it raised there, or has not returned in time.
    """
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This process", DeprecationWarning)  # it has threads
        child = os.fork()
    if not child:
        try:
            os.write(write, json.dumps(action()).encode())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(write)
    with open(read) as answer:
        ready, _, _ = select.select([answer], [], [], _SECONDS)
        if not ready:
            os.kill(child, signal.SIGKILL)
        told = answer.read()
    os.waitpid(child, 0)
    assert ready, "the child hangs"
    assert told, "the child raised"
    return json.loads(told)
