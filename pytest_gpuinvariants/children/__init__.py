"""``children=True``: the invariant in the processes that a test starts.

The parent opens a channel, a folder named by an environment variable.  A child finds it when it
imports torch (``bootstrap/``), when vLLM loads its general plugins, or because it was forked; it then
polices itself and writes its findings into the folder at once, so that they survive its death.
"""

from __future__ import annotations

from pytest_gpuinvariants.children.child import join

__all__ = ["join"]
