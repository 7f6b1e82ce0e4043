"""What vLLM, FlashInfer and Triton work out from the card while they are imported: worked out again when it changes.

A statement such as ``ENABLE_PDL = current_platform.is_arch_support_pdl()`` at the top level of a
module is found in its source, and evaluated anew in the module's own namespace.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

PACKAGES = ("vllm.", "flashinfer.", "triton.")
_ASKS = (
    r"(?:device_capability\w*|is_arch_support_pdl|get_compute_capability|is_sm\w+_supported|get_device_properties)\("
)
_LINE = re.compile(rf"^[A-Za-z_]\w*\s*(?::[^=\n]+)?=[^\n]*(?:\n[ \t)][^\n]*)*?{_ASKS}", re.MULTILINE)
_CALL = re.compile(_ASKS)


@dataclass(frozen=True, eq=False)
class Constant:
    """An attribute of a module, and the expression that makes it."""

    module: str
    attribute: str
    code: CodeType

    @property
    def name(self) -> str:
        """``module.attribute``."""
        return f"{self.module}.{self.attribute}"

    @property
    def holds(self) -> object:
        """The attribute's value; None while its import is under way."""
        return getattr(sys.modules[self.module], self.attribute, None)

    @property
    def value(self) -> object:
        """What the expression says now."""
        return eval(self.code, vars(sys.modules[self.module]))


_known: dict[str, tuple[Constant, ...]] = {}


def _source(module: Any) -> str:
    file = str(getattr(module, "__file__", None))
    return Path(file).read_text(encoding="utf-8") if file.endswith(".py") and Path(file).exists() else ""


def is_written(name: str, attribute: str, value: object) -> bool:
    """Whether a module's source spells a value out, or takes it by name from a module that does.

    Such a value is a constant of the program, and not an answer about the card.
    """
    module: Any = sys.modules.get(name)
    for node in ast.parse(_source(module)).body:
        if isinstance(node, ast.ImportFrom):
            taken = next((one.name for one in node.names if (one.asname or one.name) == attribute), None)
            if taken is not None:
                package = getattr(module, "__package__", None) or name
                origin = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
                return origin != name and is_written(origin, taken, value)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == attribute for target in targets):
            with contextlib.suppress(ValueError, TypeError):
                if ast.literal_eval(getattr(node, "value")) == value:  # noqa: B009
                    return True
    return False


def _constants(name: str, module: Any) -> Iterator[Constant]:
    source = _source(module)
    if not _LINE.search(source):
        return
    for node in ast.parse(source).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if isinstance(target, ast.Name) and value is not None and _CALL.search(ast.unparse(value)):
            yield Constant(name, target.id, compile(ast.Expression(value), str(module.__file__), "eval"))


def found() -> list[Constant]:
    """All such attributes of the modules that are imported now."""
    for name, module in list(sys.modules.items()):
        if name.startswith(PACKAGES) and name not in _known:
            _known[name] = tuple(_constants(name, module))
    return [one for name, constants in _known.items() if name in sys.modules for one in constants]


def work_out() -> None:
    """Give each the value that it has for the card as it is seen now."""
    for one in found():
        if one.holds is not None:
            with contextlib.suppress(Exception):  # told by wrong()
                setattr(sys.modules[one.module], one.attribute, one.value)


def wrong() -> list[str]:
    """Those that do not have it, or of which that can not be told."""
    result = []
    for one in found():
        try:
            if one.holds is not None and one.holds != one.value:
                result.append(f"{one.name} = {one.holds!r}")
        except Exception as error:
            result.append(f"{one.name} = {one.holds!r}, which can not be worked out again ({error!r})")
    return result
