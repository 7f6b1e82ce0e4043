"""``fresh_config_context`` on vLLM's, FlashInfer's and torch's own state: each leak is named, and undone."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import Run, text
from tests.acceptance.test_fresh_context import findings

pytest.importorskip("vllm")

_SOURCE = """
    import os, threading, types, unittest
    import pytest
    import torch
    import flashinfer.utils
    import vllm.config.vllm as config
    import vllm.distributed.device_communicators.flashinfer_all_reduce as reduce
    import vllm.distributed.parallel_state as parallel
    import vllm.platforms
    import vllm.utils.gpu_sync_debug as sync
    import vllm.v1.worker.workspace as workspace
    from vllm.config import VllmConfig, set_current_vllm_config
    from pytest_gpuinvariants import fresh_config_context, known_fault

    pytestmark = fresh_config_context
    vllm.platforms.current_platform
    DESTROYED, KEEP, PLATFORM = [], [], vllm.platforms._current_platform

    class Workspace:
        backend = "trtllm"
        def __init__(self, name="one"): self.name = name
        def destroy(self): DESTROYED.append(self.name)

    def create(getter):
        # A creation of vLLM's own, up to the call of FlashInfer.
        kept = reduce._resolve_fi_ar_backend, reduce.TorchDistBackend, reduce.flashinfer_comm
        reduce._resolve_fi_ar_backend = lambda group: ("trtllm", False)
        reduce.TorchDistBackend = lambda group: None
        reduce.flashinfer_comm = types.SimpleNamespace(create_allreduce_fusion_workspace=CREATE[0])
        count, reduce._node_count = reduce._node_count, lambda group: 1
        try:
            return getter(world_size=2, rank=0, max_token_num=8, hidden_dim=128, dtype=torch.bfloat16, group=object())
        finally:
            reduce._resolve_fi_ar_backend, reduce.TorchDistBackend, reduce.flashinfer_comm = kept
            reduce._node_count = count

    def fails(**arguments): raise RuntimeError("no memory")
    CREATE = [lambda **arguments: Workspace()]

    class Group:
        def destroy(self): DESTROYED.append("group")
"""

_REDUCE = "vllm.distributed.device_communicators.flashinfer_all_reduce"
_BOTH = [
    f"leak:vllm.fi_ar_workspace@{_REDUCE}.get_fi_ar_workspace",
    f"leak:vllm.fi_ar_workspace_groups@{_REDUCE}.get_fi_ar_workspace",
]

# What a test does, what must hold again afterwards, and the findings.
LEAKS: dict[str, tuple[str, str, list[str]]] = {
    "config": (
        "KEEP.append(set_current_vllm_config(VllmConfig(), prefix='layers.0')); KEEP[-1].__enter__()",
        "config.get_current_vllm_config_or_none() is None and config._current_prefix is None",
        [f"leak:vllm.{name}@vllm.config.vllm.set_current_vllm_config" for name in ("current_config", "current_prefix")],
    ),
    "compilation_config": (
        "with set_current_vllm_config(VllmConfig()): config.get_cached_compilation_config()\n"
        "        config._current_vllm_config = VllmConfig()\n"
        "        config.get_cached_compilation_config(); config._current_vllm_config = None",
        "config.get_cached_compilation_config.cache_info().currsize == 0",
        [],
    ),
    "workspace": (
        "create(reduce.get_fi_ar_workspace)",
        "reduce._fi_ar_workspace is None and not reduce._fi_ar_workspace_groups and DESTROYED.count('one') == 1",
        _BOTH,
    ),
    "aliased_workspaces": (
        "assert create(reduce.get_fi_ar_workspace) is create(reduce.get_fi_ar_quant_workspace)",
        "reduce._fi_ar_quant_workspace is None and DESTROYED.count('one') == 2",  # one of each test
        [f"leak:vllm.fi_ar_quant_workspace@{_REDUCE}.get_fi_ar_quant_workspace", *_BOTH],
    ),
    "failed": (
        "CREATE[:] = [fails]; create(reduce.get_fi_ar_workspace)",
        "not reduce._fi_ar_workspace_failed",
        [f"leak:vllm.fi_ar_workspace_failed@{_REDUCE}.get_fi_ar_workspace"],
    ),
    "quant_failed": (
        "CREATE[:] = [fails]; create(reduce.get_fi_ar_quant_workspace)",
        "not reduce._fi_ar_quant_workspace_failed",
        [f"leak:vllm.fi_ar_quant_workspace_failed@{_REDUCE}.get_fi_ar_quant_workspace"],
    ),
    "by_hand": (
        "reduce._fi_ar_workspace = Workspace('by hand')",
        "reduce._fi_ar_workspace is None and DESTROYED[-1] == 'by hand'",
        ["leak:vllm.fi_ar_workspace@test_it.test_by_hand"],
    ),
    "manager": (
        "workspace.init_workspace_manager(torch.device('cpu'))",
        "workspace._manager is None",
        ["leak:vllm.workspace_manager@vllm.v1.worker.workspace.init_workspace_manager"],
    ),
    "first_seen": (
        "sync._GPU_SYNC_ALLOWED_FIRST_SEEN.add(('file.py', 3))",
        "not sync._GPU_SYNC_ALLOWED_FIRST_SEEN",
        [],
    ),
    "sync_check": (
        "sync._sync_check_enabled = True",
        "not sync._sync_check_enabled",
        ["changed:vllm.gpu_sync_check@test_it.test_sync_check"],
    ),
    "platform": (
        "vllm.platforms._current_platform = object()",
        "vllm.platforms._current_platform is PLATFORM",
        ["changed:vllm.current_platform@test_it.test_platform"],
    ),
    "group": (
        "parallel._TP = Group()",
        "parallel._TP is None and DESTROYED[-1] == 'group'",
        ["leak:vllm.group.TP@test_it.test_group"],
    ),
    "cache_buf": (
        "flashinfer.utils._get_cache_buf('name', 64, torch.device('cpu'))",
        "not flashinfer.utils._cache_buf",
        ["leak:flashinfer.cache_buf@flashinfer.utils._get_cache_buf"],
    ),
    "capability": (
        "flashinfer.utils.get_compute_capability(torch.device('cuda:0'))",
        "flashinfer.utils.get_compute_capability.cache_info().currsize == 0",
        [],
    ),
    "thread": (
        "made = threading.Thread(target=create, args=(reduce.get_fi_ar_workspace,), name='maker')\n"
        "        made.start(); made.join()",
        "reduce._fi_ar_workspace is None",
        _BOTH,
    ),
}


_LEAKING = [name for name, (_, _, ids) in LEAKS.items() if ids]


def test_each_leak_is_named_and_undone(run: Run, pytester: pytest.Pytester) -> None:
    source = _SOURCE
    for name, (change, holds, _) in LEAKS.items():
        source += f"""
    def test_{name}():
        {change}

    def test_after_{name}():
        CREATE[:] = [lambda **arguments: Workspace()]
        assert {holds}
"""
    result = run(source, "--junitxml=junit.xml", "-p", "no:randomly")
    assert findings(pytester.path / "junit.xml") == {
        test: sorted(ids)
        for name, (_, _, ids) in LEAKS.items()
        for test, ids in ((f"test_{name}", ids), (f"test_after_{name}", []))
    }
    result.assert_outcomes(passed=2 * len(LEAKS), errors=len(_LEAKING))
    assert "in get_fi_ar_workspace" in text(result)
    assert "thread: maker" in text(result)
    result.stdout.fnmatch_lines([f"{len(_LEAKING)} violated on *", f"{2 * len(LEAKS) - len(_LEAKING)} verified on *"])


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_the_verdicts_are_the_same_in_any_order(
    run: Run, pytester: pytest.Pytester, seed: int, workers: tuple[str, ...]
) -> None:
    pytester.makeconftest(
        f"def pytest_collection_modifyitems(items):\n    __import__('random').Random({seed}).shuffle(items)\n"
    )
    clean = " and ".join(holds.split(" and DESTROYED")[0] for _, holds, _ in LEAKS.values())
    source = f"{_SOURCE}\n    def is_clean(): return {clean}\n"
    for name, (change, _, _) in LEAKS.items():
        source += f"""
    def test_{name}():
        assert is_clean()
        CREATE[:] = [lambda **arguments: Workspace()]
        {change}
"""
    result = run(source, "--junitxml=junit.xml", "-p", "no:randomly", *workers)
    result.assert_outcomes(passed=len(LEAKS), errors=len(_LEAKING))
    assert findings(pytester.path / "junit.xml") == {f"test_{name}": sorted(ids) for name, (_, _, ids) in LEAKS.items()}


def test_what_was_there_is_set_aside_and_comes_back(run: Run, pytester: pytest.Pytester) -> None:
    result = run(
        _SOURCE
        + """
    # At import, which is before any test, as an unmarked test would do it.
    reduce._fi_ar_workspace = reduce._fi_ar_quant_workspace = MINE = Workspace("mine")
    reduce._fi_ar_workspace_groups[id(MINE)] = GROUP = object()
    CONFIG = config._current_vllm_config = VllmConfig()
    TP = parallel._TP = Group()
    sync._GPU_SYNC_ALLOWED_FIRST_SEEN.add(("file.py", 3))

    def test_sees_nothing():
        assert reduce._fi_ar_workspace is reduce._fi_ar_quant_workspace is config._current_vllm_config is None
        assert not reduce._fi_ar_workspace_groups and not sync._GPU_SYNC_ALLOWED_FIRST_SEEN

    def test_makes_another():
        with set_current_vllm_config(VllmConfig()):
            assert create(reduce.get_fi_ar_workspace) is not MINE

    @fresh_config_context(singletons="vllm.group.TP")
    def test_declares_the_group(): assert parallel._TP is TP

    def teardown_module():
        assert reduce._fi_ar_workspace is reduce._fi_ar_quant_workspace is MINE
        assert reduce._fi_ar_workspace_groups == {id(MINE): GROUP}
        assert config._current_vllm_config is CONFIG and parallel._TP is TP
        assert sync._GPU_SYNC_ALLOWED_FIRST_SEEN == {("file.py", 3)}
        assert DESTROYED == ["one"], DESTROYED
        # Neither is vLLM's to destroy at exit.
        reduce._fi_ar_workspace = reduce._fi_ar_quant_workspace = config._current_vllm_config = parallel._TP = None
""",
        "--junitxml=junit.xml",
        "-p",
        "no:randomly",
    )
    result.assert_outcomes(passed=3, errors=2)
    found = findings(pytester.path / "junit.xml")
    assert [one.partition("@")[0] for one in found["test_sees_nothing"]] == ["inherited:vllm.group.TP"]
    assert [one.partition("@")[0] for one in found["test_makes_another"]] == [
        "inherited:vllm.group.TP",
        "leak:vllm.fi_ar_workspace",
        "leak:vllm.fi_ar_workspace_groups",
    ]
    assert found["test_declares_the_group"] == []
    aside = findings(pytester.path / "junit.xml", "note")["test_sees_nothing"]
    assert [one.partition("@")[0] for one in aside] == [
        f"set-aside:vllm.{name}"
        for name in ("current_config", "fi_ar_quant_workspace", "fi_ar_workspace", "fi_ar_workspace_groups")
    ]
