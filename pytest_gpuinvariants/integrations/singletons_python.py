"""Process-wide state of the interpreter and of NumPy."""

from __future__ import annotations

import os
import warnings
from typing import Any

from pytest_gpuinvariants import environment
from pytest_gpuinvariants.integrations.singletons import MISSING, Singleton, Treatment, variable

# pytest's own, which tells where it is.
_NOT_THE_TESTS = ("PYTEST_CURRENT_TEST",)


def _environment(module: Any) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _NOT_THE_TESTS}


def _set_variable(module: Any, name: str, value: Any) -> None:
    environment.restore({name: None if value is MISSING else value})


def _cwd(module: Any) -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "(removed)"


def _set_filters(module: Any, state: Any) -> None:
    filters: list[Any] = warnings.filters  # type: ignore[assignment]
    filters[:] = state
    warnings._filters_mutated()  # type: ignore[attr-defined]


ENTRIES = (
    Singleton(
        name="env",
        module="os",
        see=_environment,
        put=_set_variable,
        treatment=Treatment.MODE,
        absent=MISSING,
        created_by=("os:_Environ.__setitem__", "os:_Environ.__delitem__"),
        parts=True,
    ),
    Singleton(
        name="python.cwd",
        module="os",
        see=_cwd,
        put=lambda module, path: os.chdir(path),
        treatment=Treatment.MODE,
    ),
    variable("python.showwarning", "warnings:showwarning", treatment=Treatment.MODE),
    variable("python.showwarnmsg", "warnings:_showwarnmsg_impl", treatment=Treatment.MODE),
    Singleton(
        name="python.warning_filters",
        module="warnings",
        see=lambda module: list(warnings.filters),
        put=_set_filters,
        treatment=Treatment.RESTORED,
    ),
    Singleton(
        name="python.random",
        module="random",
        see=lambda module: module.getstate(),
        put=lambda module, state: module.setstate(state),
        treatment=Treatment.RESTORED,
    ),
    Singleton(
        name="numpy.random",
        module="numpy.random",
        see=lambda module: module.get_state(),
        put=lambda module, state: module.set_state(state),
        treatment=Treatment.RESTORED,
    ),
)
