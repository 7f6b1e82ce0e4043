"""Imports modules in a process of its own, and writes down what that did.  Standard library only.

Run as a program, with the path of a request and an open file descriptor for the answer.  Some effects are
heard as they happen (``_HEARD`` and what :class:`_Watch` wraps); the rest is state, looked at before and
after each module that is loaded and compared in the end (``_STATE``).
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import functools
import importlib
import json
import os
import signal
import stat
import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CUDA_NOT_INITIALIZED = 3
# Of _thread, and as threading imports them; which there are differs between versions of Python.
_STARTERS = ("start_new_thread", "start_new", "_start_new_thread", "start_joinable_thread", "_start_joinable_thread")

Heard = tuple[str, str, str]
"""Kind, subject, detail."""
Frames = list[tuple[str, str, str, int]]
Key = tuple[str, str]
"""Kind and subject of a piece of state."""


# ---- what is heard as it happens: audit events of the interpreter ------------------------------------


def _text(value: object) -> str:
    return os.fsdecode(value) if isinstance(value, bytes | str | os.PathLike) else repr(value)


def _opened(path: object, _: object, flags: int) -> Heard | None:
    if isinstance(path, int) or not flags & _WRITING:
        return None
    full = os.path.abspath(_text(path))
    try:
        mode = os.stat(full).st_mode
    except OSError:
        return "file-write", "create", full
    return ("file-write", "open", full) if stat.S_ISREG(mode) else None  # not /dev/null, a pipe, a terminal


def _changed(operation: str, *, makes: bool = False) -> Callable[..., Heard | None]:
    def heard(path: object, *rest: object) -> Heard | None:
        if isinstance(path, int):
            return "file-write", operation, f"file descriptor {path}"
        folder = rest[-1]
        base = os.readlink(f"/proc/self/fd/{folder}") if isinstance(folder, int) and folder >= 0 else os.getcwd()
        full = os.path.normpath(os.path.join(base, _text(path)))
        # With nothing to change, the call fails.
        return None if os.path.lexists(full) == makes else ("file-write", operation, full)

    return heard


def _started(command: object) -> Heard:
    words = [_text(word) for word in command] if isinstance(command, list | tuple) else _text(command).split()
    return "process", os.path.basename(words[0]) if words else "?", " ".join(words)


def _network(operation: str, address: object) -> Heard | None:
    return None if address is None else ("socket", operation, repr(address))


_HEARD: dict[str, Callable[..., Heard | None]] = {
    "open": _opened,
    "os.mkdir": _changed("mkdir", makes=True),
    "os.rename": lambda source, target, *_: ("file-write", "rename", f"{_text(source)} to {_text(target)}"),
    "os.link": lambda source, target, *_: ("file-write", "link", _text(target)),
    "os.symlink": lambda source, target, *_: ("file-write", "symlink", _text(target)),
    "os.remove": _changed("remove"),
    "os.rmdir": _changed("rmdir"),
    "os.truncate": lambda path, *_: ("file-write", "truncate", _text(path)),
    "os.chmod": lambda path, *_: ("file-write", "chmod", _text(path)),
    "sqlite3.connect": lambda path: ("file-write", "sqlite3.connect", _text(path)) if path != ":memory:" else None,
    "subprocess.Popen": lambda executable, arguments, *_: _started(arguments),
    "os.system": _started,
    "os.posix_spawn": lambda path, arguments, *_: _started(arguments),
    "os.exec": lambda path, arguments, *_: _started(arguments),
    "os.fork": lambda: ("process", "fork", "a fork of the importing process"),
    "os.forkpty": lambda: ("process", "fork", "a fork of the importing process"),
    "socket.bind": lambda _, address: _network("bind", address),
    "socket.connect": lambda _, address: _network("connect", address),
    "socket.sendto": lambda _, address: _network("sendto", address),
    "socket.getaddrinfo": lambda host, *_: _network("getaddrinfo", host),
}


# ---- what is state: looked at before and after each module ------------------------------------------------------


def _cuda() -> dict[str, str]:
    """Whether the driver is initialised, by anyone: it says so itself, and is not loaded for the question."""
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return {}
    count = ctypes.c_int()
    return {} if driver.cuDeviceGetCount(ctypes.byref(count)) == _CUDA_NOT_INITIALIZED else {"cuda": "initialised"}


def _environment() -> dict[str, str]:
    """The variables of the C library, which are what other libraries and child processes see."""
    entries = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    found: dict[str, str] = {}
    if ctypes.cast(entries, ctypes.c_void_p).value is None:
        return found  # after clearenv()
    index = 0
    while (entry := entries[index]) is not None:
        name, _, value = os.fsdecode(entry).partition("=")
        found.setdefault(name, value)
        index += 1
    return found


def _global_state() -> dict[str, str]:
    found = {"sys.path": repr(sys.path)}
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if handler not in (signal.SIG_DFL, signal.SIG_IGN, None, signal.default_int_handler):
            found[f"handler of {signal.Signals(number).name}"] = repr(handler)
    context: Any = sys.modules.get("multiprocessing.context")
    default = getattr(context, "_default_context", None)
    if default is not None and default._actual_context is not None:
        found["multiprocessing's start method"] = str(default._actual_context._name)
    torch: Any = sys.modules.get("torch")
    if torch is not None and not torch.__spec__._initializing and str(torch.get_default_dtype()) != "torch.float32":
        found["torch's default dtype"] = str(torch.get_default_dtype())
    return found


def _native_threads() -> dict[str, str]:
    started = {thread.native_id for thread in threading.enumerate()}
    names: dict[str, int] = {}
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):
            if int(task) not in started:
                descriptor = os.open(f"/proc/self/task/{task}/comm", os.O_RDONLY)
                name = os.read(descriptor, 64).decode(errors="replace").strip()
                os.close(descriptor)
                names[name] = names.get(name, 0) + 1
    return {name: str(count) for name, count in names.items()}


_STATE: dict[str, Callable[[], dict[str, str]]] = {
    "cuda-init": _cuda,
    "environment": _environment,
    "global-state": _global_state,
    "native-thread": _native_threads,
}


def _difference(kind: str, old: str | None, new: str | None) -> str:
    if kind in ("environment", "global-state"):  # values may be secret, or long
        return "sets" if old is None else "removes" if new is None else "changes"
    return f"{old or 0} before, {new or 0} after" if kind == "native-thread" else ""


class _Watch:
    """Sees the effects of imports, and writes one line of JSON for each."""

    def __init__(self, request: dict[str, Any], answer: int) -> None:
        self._kinds = frozenset(request["kinds"])
        self._located: dict[str, list[str]] = request["locate"]
        self._readers: dict[str, list[str]] = request["config_readers"]
        self._current: str = request["current_config"]
        self._answer = answer
        self._pid = os.getpid()
        self._main = threading.get_ident()
        self._last: dict[Key, Frames] = {}
        self._putenv: dict[str, Frames] = {}
        self._lines: dict[FrameType, int] = {}
        self._before = self._seen = self._look(self._kinds)

    def write(self, **line: object) -> None:
        """Add a line to the answer; it is there when this returns, whatever happens next."""
        os.write(self._answer, json.dumps(line).encode() + b"\n")

    def tell(self, kind: str, subject: str, detail: str, stack: Frames) -> None:
        """Write an effect."""
        if kind in self._kinds:
            known = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]
            name = known.name if known is not None else "native"
            thread = [threading.get_native_id(), name]
            self.write(effect={"kind": kind, "subject": subject, "detail": detail}, thread=thread, stack=stack)

    # -- hearing --

    def begin(self) -> None:
        """See what happens from now on."""
        bootstrap: Any = sys.modules["_frozen_importlib"]
        bootstrap._load_unlocked = self._loading(bootstrap._load_unlocked)
        for module in (_thread, threading):
            for name in _STARTERS:
                if (original := getattr(module, name, None)) is not None:
                    setattr(module, name, self._starting(original))
        forking: Any = importlib.import_module("_posixsubprocess")
        forking.fork_exec = self._spawning(forking.fork_exec)
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if os.getpid() != self._pid:
            return  # a process that was forked off
        try:
            if event in ("os.putenv", "os.unsetenv"):
                self._putenv[_text(arguments[0])] = _stack()
            elif event in _HEARD and (heard := _HEARD[event](*arguments)) is not None:
                self.tell(*heard, _stack())
        except Exception:
            self.write(error=traceback.format_exc())

    def _starting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def start(function: Any, *arguments: Any, **options: Any) -> Any:
            # threading.Thread: its own method is what is started.
            thread = getattr(function, "__self__", None)
            target = getattr(thread, "_target", None) or (type(thread) if thread is not None else function)
            name = f"{getattr(target, '__module__', '?')}.{getattr(target, '__qualname__', repr(target))}"
            self.tell("thread", name, getattr(thread, "name", ""), _stack())
            return original(function, *arguments, **options)

        return start

    def _spawning(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def fork_exec(arguments: Any, *rest: Any) -> Any:
            if sys._getframe(1).f_globals.get("__name__") != "subprocess":  # which is heard of anyhow
                self.tell(*_started(list(arguments)), _stack())
            return original(arguments, *rest)

        return fork_exec

    def _reading(self, module: ModuleType, name: str) -> None:
        original = getattr(module, name)

        @functools.wraps(original)
        def read(*arguments: Any, **options: Any) -> Any:
            if getattr(module, self._current) is None:
                self.tell("config-read", f"{module.__name__}.{name}", "", _stack())
            return original(*arguments, **options)

        setattr(module, name, read)

    # -- looking --

    def _look(self, kinds: frozenset[str]) -> dict[Key, str]:
        return {(kind, name): value for kind in kinds if kind in _STATE for name, value in _STATE[kind]().items()}

    def _compare(self, kinds: frozenset[str], stack: Callable[[], Frames]) -> None:
        """Remember where state has changed.  Called amid an import, which must not notice."""
        try:
            self._note_changes(kinds, stack)
        except Exception:
            self.write(error=traceback.format_exc())

    def _note_changes(self, kinds: frozenset[str], stack: Callable[[], Frames]) -> None:
        now = self._look(kinds)
        seen = {key: value for key, value in self._seen.items() if key[0] in kinds}
        if now == seen:
            return
        frames = stack()
        for key in {*now, *seen}:
            if now.get(key) != seen.get(key):
                heard = self._putenv.pop(key[1], None) if key[0] == "environment" else None
                self._last[key] = heard or frames
        self._seen = {**{key: value for key, value in self._seen.items() if key[0] not in kinds}, **now}

    def _loading(self, original: Callable[[Any], ModuleType]) -> Callable[[Any], ModuleType]:
        def load(spec: Any) -> ModuleType:
            outer = sys.gettrace()
            self._compare(self._kinds, _importer)  # what its importer has done since it imported another
            kinds = frozenset(self._located.get(spec.name, ()))
            sys.settrace(self._trace(kinds) if kinds and threading.get_ident() == self._main else None)
            try:
                module = original(spec)
            finally:
                sys.settrace(None)
                here: Frames = [(spec.name, "<module>", spec.origin or "?", 0)]
                self._compare(self._kinds, lambda: here + _stack())
                sys.settrace(outer)
            for name in self._readers.get(spec.name, ()):
                self._reading(module, name)
            return module

        return load

    def _trace(self, kinds: frozenset[str]) -> Callable[[FrameType, str, Any], Any]:
        """Look at each line of a module and of what it calls: what has changed, the line before did."""

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            # A new line is about to run, a call is about to begin; else the line at fault is the current one.
            at, line = frame, self._lines.get(frame) if event == "line" else None
            if event == "call" and frame.f_back is not None:
                at = frame.f_back
            self._compare(kinds, lambda: _stack(at, line))
            self._lines[frame] = frame.f_lineno
            if event == "return":
                self._lines.pop(frame, None)
            return trace

        return trace

    def finish(self) -> None:
        """Write what is not as it was."""
        self._compare(self._kinds, lambda: [])
        now = self._look(self._kinds)
        for key in sorted({*now, *self._before}):
            old, new = self._before.get(key), now.get(key)
            if old != new:
                self.tell(*key, _difference(key[0], old, new), self._last.get(key, []))


def _stack(start: FrameType | None = None, line: int | None = None) -> Frames:
    """The calling thread's frames, innermost first, without this file's and the import system's."""
    frames: Frames = []
    frame = start or sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        module = str(frame.f_globals.get("__name__", "?"))
        own = code.co_filename == __file__ or code.co_filename.startswith("<frozen importlib") or module == "importlib"
        if not own:
            frames.append((module, code.co_qualname, code.co_filename, line or frame.f_lineno))
        line = None
        frame = frame.f_back  # type: ignore[assignment]
    return frames


def _importer() -> Frames:
    """The module under way, at no line: what it calls may have imported, too."""
    frames = _stack()
    at = next((index for index, frame in enumerate(frames) if frame[1] == "<module>"), None)
    return frames if at is None else [(*frames[at][:3], 0), *frames[at + 1 :]]


def _simulate(recipe: dict[str, Any]) -> None:
    """Open a simulated card as the parent has it."""
    libraries = [ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL) for library in recipe["libraries"]]
    devices = bytes.fromhex(recipe["devices"])
    if error := libraries[0].sim_configure(devices, recipe["count"], recipe["cuda_version"]):
        raise RuntimeError(f"the simulated card refused its configuration (error {error})")


def _traceback(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    plumbing = (__file__, importlib.__file__)
    kept = [one for one in frames if one.filename not in plumbing and not one.filename.startswith("<frozen importlib")]
    return "".join(traceback.format_list(kept)).rstrip()


def _main() -> None:
    with open(sys.argv[1]) as file:
        request = json.load(file)
    answer = int(sys.argv[2])
    os.set_inheritable(answer, False)
    if request["simulate"]:
        _simulate(request["simulate"])
    sys.path[:] = request["path"]
    sys.argv[:] = [""]
    watch = _Watch(request, answer)
    if _cuda():
        watch.write(error="CUDA is initialised before the first import")
        return
    loaded = frozenset(sys.modules)
    watch.begin()
    for name in request["modules"]:
        watch.write(importing=name)
        if name in loaded:
            watch.write(error="Python itself, or the program that watches, has imported it before")
            return
        try:
            importlib.import_module(name)
        except BaseException as error:
            text = "".join(traceback.format_exception_only(error)).strip()
            watch.write(failed=name, error_text=text, trace=_traceback(error))
            break
    watch.finish()
    watch.write(done=True)


if __name__ == "__main__":
    _main()
    sys.stdout.flush()
    os._exit(0)  # what the modules do at exit is not what their import does
