"""What the import of modules does, seen in a fresh process: see ``import_child.py`` for what runs there."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_gpuinvariants.children.channel import VARIABLE
from pytest_gpuinvariants.events import Frame, ImportEffect, Thread
from pytest_gpuinvariants.integrations import vllm_config

_PROGRAM = Path(__file__).with_name("import_child.py")
_TAIL = 2000  # characters of what a process printed before it failed


class ImportNotVerifiedError(RuntimeError):
    """A module could not be imported, or its process did not live to tell; the message says why.

    ``effects`` are those that were seen until then.
    """

    def __init__(self, message: str, effects: tuple[ImportEffect, ...] = ()) -> None:
        super().__init__(message)
        self.effects = effects


@dataclass(frozen=True)
class Request:
    """What to import, and what to look for.

    ``simulate`` is :attr:`SimulatedRuntime.recipe`, None on a real card or without any.  ``timeout`` is in
    seconds, for each process that is started: the modules are imported once more where a line is to be found.
    """

    modules: tuple[str, ...]
    kinds: frozenset[str]
    timeout: float
    simulate: Mapping[str, object] | None = None

    def message(self, locate: Mapping[str, Iterable[str]]) -> str:
        """As the process reads it."""
        return json.dumps(
            {
                "modules": self.modules,
                "kinds": sorted(self.kinds),
                "simulate": self.simulate,
                "path": sys.path,
                "config_readers": vllm_config.READERS,
                "current_config": vllm_config.CURRENT,
                "locate": {module: sorted(kinds) for module, kinds in locate.items()},
            }
        )


def record(request: Request) -> tuple[ImportEffect, ...]:
    """Import the modules, in their order, in one fresh process, and tell what that did.

    State is looked at before and after each module that is loaded.  Where it changed, a second process looks after
    each line of the modules at fault.

    Raises:
        ImportNotVerifiedError: a module can not be imported, or the process hung, died or could not look.
    """
    effects = _lasting(_run(request, {}))
    vague: dict[str, set[str]] = {}
    for effect in effects:
        if _is_vague(effect):
            vague.setdefault(effect.stack[0].module, set()).add(effect.kind)
    if not vague:
        return effects
    try:
        again = _run(request, vague)
    except ImportNotVerifiedError:
        return effects  # the module is known, if not the line
    exact = {(one.kind, one.subject): one.stack for one in again if one.stack and not _is_vague(one)}
    return tuple(
        replace(one, stack=exact.get((one.kind, one.subject), one.stack)) if _is_vague(one) else one for one in effects
    )


def _lasting(effects: tuple[ImportEffect, ...]) -> tuple[ImportEffect, ...]:
    """Without the files and folders that were made and removed again, such as Python's trial of a temporary folder."""
    files = [one for one in effects if one.kind == "file-write"]
    made = {one.detail for one in files if one.subject in ("create", "mkdir")}
    gone = {one.detail for one in files if one.subject in ("remove", "rmdir")} & made
    gone = {path for path in gone if not os.path.lexists(path)}
    return tuple(one for one in effects if one.kind != "file-write" or one.detail not in gone)


def _is_vague(effect: ImportEffect) -> bool:
    return bool(effect.stack) and effect.stack[0].line == 0


def _environment() -> dict[str, str]:
    """The test's, without the channel by which ``children=True`` reaches processes: this one reports by itself."""
    return {name: value for name, value in os.environ.items() if name != VARIABLE}


def _run(request: Request, locate: Mapping[str, Iterable[str]]) -> tuple[ImportEffect, ...]:
    with tempfile.TemporaryDirectory(prefix="gpuinvariants-import-") as folder:
        asked, answer, printed = (Path(folder, name) for name in ("request.json", "answer.jsonl", "output"))
        asked.write_text(request.message(locate))
        with open(answer, "wb") as answering, open(printed, "wb") as printing:
            command = [sys.executable, "-B", "-P", str(_PROGRAM), str(asked), str(answering.fileno())]
            process = subprocess.Popen(
                command,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=printing,
                stderr=subprocess.STDOUT,
                pass_fds=[answering.fileno()],
                start_new_session=True,
            )
            try:
                ended: int | None = process.wait(request.timeout)
            except subprocess.TimeoutExpired:
                ended = None
            finally:
                # With all that it started: an import leaves nothing running behind the test.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        lines = [json.loads(line) for line in answer.read_text().splitlines()]
        output = printed.read_text(errors="replace").strip()[-_TAIL:]
    return _read(lines, request, ended, output, process.pid)


def _read(
    lines: list[dict[str, Any]], request: Request, ended: int | None, output: str, pid: int
) -> tuple[ImportEffect, ...]:
    name = request.modules[0] + (", …" if len(request.modules) > 1 else "")
    process = f"import of {name} (pid {pid})"
    effects = tuple(
        ImportEffect(
            **line["effect"],
            thread=Thread(*line["thread"]),
            stack=tuple(Frame(*frame) for frame in line["stack"]),
            process=process,
        )
        for line in lines
        if "effect" in line
    )
    importing = next((line["importing"] for line in reversed(lines) if "importing" in line), request.modules[0])
    said = f"\nIt printed:\n{output}" if output else ""
    for line in lines:
        if "failed" in line:
            problem = f"{line['failed']} can not be imported: {line['error_text']}\n{line['trace']}"
            raise ImportNotVerifiedError(problem, effects)
        if "error" in line:
            raise ImportNotVerifiedError(f"the import of {importing} could not be watched: {line['error']}", effects)
    if ended is None:
        problem = f"the import of {importing} did not end within {request.timeout:g} s"
    elif ended < 0:
        problem = f"the import of {importing} ended its process by {_signal(-ended)}"
    elif not any("done" in line for line in lines):
        problem = f"the import of {importing} ended its process with exit status {ended}"
    else:
        return effects
    raise ImportNotVerifiedError(problem + said, effects)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
