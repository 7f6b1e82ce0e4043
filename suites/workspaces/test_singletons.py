"""The registry of process-wide state against what is installed: an entry of which the attribute vanished fails."""

from __future__ import annotations

import pytest

from pytest_gpuinvariants import Singleton, Treatment, fresh_config_context
from pytest_gpuinvariants.integrations import instrument
from pytest_gpuinvariants.integrations.singletons import builtin, same

# Relative: the suites have another name when they are installed.
from ..vllm_attention.harness import import_or_skip  # noqa: TID252


@pytest.mark.parametrize("entry", builtin(), ids=lambda entry: entry.name)
@fresh_config_context(singletons="*")
def test_entry_is_seen_and_put_back(entry: Singleton) -> None:
    """An entry in range is there, its creation points too, and putting back what is there changes nothing."""
    if not entry.in_range:
        assert entry.loaded is None
        assert entry.states() == {}
        return
    module = import_or_skip(entry.module)
    assert entry.loaded is module
    entry.see(module)  # not states(), which takes an AttributeError for a version that has none
    before = entry.states()
    for part, state in before.items():
        entry.put_back(part, state)
    after = entry.states()
    assert before.keys() == after.keys()
    if entry.treatment is not Treatment.RESTORED:  # generators give a new object each time
        assert all(same(before[part], after[part]) for part in before)
    for point in entry.created_by:
        import_or_skip(point.partition(":")[0])
        assert instrument.find(point) is not None, f"{point} can not be watched"
