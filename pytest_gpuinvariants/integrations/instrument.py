"""Hear of every call of a Python function, by whatever name it was imported.

Replacing a module's attribute misses the modules that imported the name before.  So the function
stays the object that it is, and its code is replaced: all its names then lead through ours.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

Around = Callable[..., Any]
"""Called with a callable for the rest, and the call's arguments; returns what the call shall return."""
_HOLE = "what is run in the function's place"
_LINES_ABOVE_THE_CALL = 3


def _stand_in(*args: Any, **kwargs: Any) -> Any:
    __tracebackhide__ = True
    run: Any = "what is run in the function's place"
    return run(*args, **kwargs)


class NotInstrumentableError(TypeError):
    """A function's code can not be replaced."""


class _Watched:
    """One function whose code is replaced, and those who want to hear of its calls."""

    def __init__(self, function: FunctionType) -> None:
        self.function = function
        self.code: CodeType = function.__code__
        self.arounds: tuple[Around, ...] = ()
        original = FunctionType(
            self.code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        original.__kwdefaults__ = function.__kwdefaults__
        original.__module__ = function.__module__

        def run(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            call: Callable[..., Any] = original
            for around in self.arounds:
                call = functools.partial(around, call)
            return call(*args, **kwargs)

        template = _stand_in.__code__
        function.__code__ = template.replace(
            co_consts=tuple(run if value == _HOLE else value for value in template.co_consts),
            co_name=self.code.co_name,
            co_qualname=self.code.co_qualname,
            co_filename=self.code.co_filename,
            co_firstlineno=max(1, self.code.co_firstlineno - _LINES_ABOVE_THE_CALL),
        )
        self.replaced = function.__code__

    def restore(self) -> None:
        # Someone who replaced the code after us keeps theirs.
        if self.function.__code__ is self.replaced:
            self.function.__code__ = self.code


_watched: dict[int, _Watched] = {}
_lock = threading.RLock()


def watch(function: FunctionType, around: Around) -> Callable[[], None]:
    """Let ``around`` run in the place of a function, until the result is called.

    A generator function's call is heard, which is before anything of it runs.

    Raises:
        NotInstrumentableError: the function is a closure.
    """
    if function.__code__.co_freevars:
        raise NotInstrumentableError(f"{function!r} is a closure")
    with _lock:
        here = _watched.get(id(function)) or _watched.setdefault(id(function), _Watched(function))
        here.arounds = (*here.arounds, around)

    def stop() -> None:
        with _lock:
            here.arounds = tuple(one for one in here.arounds if one is not around)
            if not here.arounds and _watched.pop(id(function), None) is not None:
                here.restore()

    return stop


def find(where: str) -> FunctionType | None:
    """The innermost function of ``module:qualname``, its decorators taken off; None where it is not loaded.

    Looks only in modules that are imported already.
    """
    name, _, path = where.partition(":")
    found: Any = sys.modules.get(name)
    for part in path.split("."):
        found = None if found is None else inspect.getattr_static(found, part, None)
    found = getattr(found, "__func__", found)
    found = inspect.unwrap(found) if callable(found) else None
    return found if isinstance(found, FunctionType) else None
