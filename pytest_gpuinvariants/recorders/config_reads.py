"""Reads of vLLM's current configuration while none is set."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any

from pytest_gpuinvariants.events import ConfigRead, Stack
from pytest_gpuinvariants.findings import MAX_DISTINCT
from pytest_gpuinvariants.integrations import instrument
from pytest_gpuinvariants.integrations.after_import import after_import
from pytest_gpuinvariants.recorders import stacks

MODULE = "vllm.config"
GETTERS = ("get_current_vllm_config", "get_current_vllm_config_or_none")
# What stands between a getter and the code that wants to know.
_BETWEEN = (*GETTERS, "get_cached_compilation_config")
_STATE = "_current_vllm_config"


class ConfigReads:
    """Counts the reads, by place, from :meth:`start` to :meth:`stop`; of every thread.

    About forty modules import the getters by name, many of them before a test begins, so the
    getters' own code is replaced while this is started; nothing is left of it afterwards.
    """

    def __init__(self, full_stacks: bool = False) -> None:
        self.counts: dict[ConfigRead, int] = {}
        self.calls = 0
        """Calls of the getters, those in a context too."""
        self.problem: str | None = None
        """Why reads can not be seen, None when they can or when vLLM is not imported."""
        self._full = full_stacks
        self._stops: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._first: dict[tuple[str, str, str], ConfigRead] = {}

    def start(self) -> None:
        """Begin; with vLLM's import, when that has not happened yet."""
        if MODULE in sys.modules and hasattr(sys.modules[MODULE], GETTERS[0]):
            self._install()
        else:
            self._stops.append(after_import(MODULE, self._install))

    def stop(self) -> None:
        """End, and put the getters back."""
        while self._stops:
            self._stops.pop()()

    def _install(self) -> None:
        for name in GETTERS:
            function = instrument.find(f"{MODULE}:{name}")
            if function is None or _STATE not in function.__globals__:
                self.problem = f"the installed vLLM has no {MODULE}.{name} that can be watched"
                continue
            try:
                self._stops.append(instrument.watch(function, self._around(function)))
            except instrument.NotInstrumentableError as error:
                self.problem = str(error)

    def _around(self, function: FunctionType) -> Callable[..., Any]:
        variables, name = function.__globals__, function.__name__

        def around(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            self.calls += 1
            if variables[_STATE] is not None:
                return call(*args, **kwargs)
            try:
                answer = call(*args, **kwargs)
            except Exception as error:
                self._count(name, type(error).__name__)
                raise
            self._count(name, "None" if answer is None else "a default")
            return answer

        return around

    def _count(self, function: str, answer: str) -> None:
        thread = stacks.current_thread()
        read = ConfigRead(function=function, answer=answer, thread=thread, stack=_reader(stacks.capture(self._full)))
        with self._lock:
            first = self._first.setdefault((function, answer, read.reader), read)
            if read not in self.counts and len(self.counts) >= MAX_DISTINCT:
                read = first  # one more way to a reader that is known: no reader is lost
            self.counts[read] = self.counts.get(read, 0) + 1


def _reader(stack: Stack) -> Stack:
    """A stack without the getters at its beginning."""
    start = 0
    while start < len(stack) - 1 and stack[start].function in _BETWEEN and stack[start].module.startswith(MODULE):
        start += 1
    return stack[start:]


def census(counts: dict[ConfigRead, int]) -> dict[str, int]:
    """Reads by reader and getter, the most frequent first; all threads and stacks together."""
    found: dict[str, int] = {}
    for read, count in counts.items():
        line = f"{read.reader}: {read.function}() gave {read.answer}"
        found[line] = found.get(line, 0) + count
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))
