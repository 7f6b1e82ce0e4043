"""``assert_context_independent`` and ``resolvers=``: what a resolver's answer depends on is told."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import Run, text
from tests.acceptance.test_fresh_context import findings

pytest.importorskip("vllm")

_LIBRARY = """
import functools, os, sys
from vllm.config import VllmConfig, get_current_vllm_config, get_current_vllm_config_or_none as current

def guarded(group=None):
    # Of the kind of vLLM's HiSparse guard.
    return "trtllm" if current() is not None else "mnnvl"

def raising(): return get_current_vllm_config() is not None

def by_environment(): return os.environ.get("BACKEND", "mnnvl")

def by_import(): return "fast" if "late" in sys.modules else "slow"

@functools.cache
def own_cache(): return guarded()

@functools.cache
def _inner(): return guarded()
def inner_cache(): return _inner()

ANSWER = []
def hidden_cache():
    if not ANSWER: ANSWER.append(guarded())
    return ANSWER[0]

pool = None
def make_pool():
    global pool
    pool = pool or object()
def lazy():
    make_pool()
    return "trtllm"

def unread(): return {"backend": "trtllm"}

def broken(): raise LookupError("no card")
"""
_HEAD = """
    import os, sys
    from contextlib import contextmanager
    from functools import partial
    import pytest
    import library
    from vllm.config import VllmConfig, set_current_vllm_config
    from pytest_gpuinvariants import assert_context_independent, fresh_config_context, known_fault
    from pytest_gpuinvariants.integrations.singletons import cache, variable
"""


def test_what_an_answer_depends_on(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(library=_LIBRARY, late="", later="")
    result = run(
        _HEAD
        + """
    def test_config(): assert_context_independent(partial(library.guarded, group=3), VllmConfig())
    def test_raising(): assert_context_independent(library.raising)
    def test_in_a_context():
        with set_current_vllm_config(VllmConfig()): assert_context_independent(library.guarded)
    def test_environment(): assert_context_independent(library.by_environment, environment={"BACKEND": "trtllm"})
    def test_import(): assert_context_independent(library.by_import, imports="late")
    def test_own_cache(): assert_context_independent(library.own_cache)
    @fresh_config_context
    def test_inner_cache(gpu_singletons):
        gpu_singletons.register(cache("library.inner", "library:_inner"))
        assert_context_independent(library.inner_cache)
    def test_hidden_cache(): assert_context_independent(library.hidden_cache)
    @fresh_config_context
    def test_lazy(gpu_singletons):
        gpu_singletons.register(variable("library.pool", "library:pool", created_by=("library:make_pool",)))
        assert_context_independent(library.lazy)

    @contextmanager
    def environment_of_a_server():
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("BACKEND", "trtllm")
            yield
    def test_a_context_of_ones_own(): assert_context_independent(library.by_environment, environment_of_a_server)

    def test_none():
        environment = {"BACKEND": "x", "PATH": None}
        answer = assert_context_independent(library.unread, environment=environment, imports="later")
        assert answer == {"backend": "trtllm"} and "BACKEND" not in os.environ and "PATH" in os.environ
    def test_broken():
        with pytest.raises(LookupError, match="no card"): assert_context_independent(library.broken)
    def test_too_late(): assert_context_independent(library.unread, imports=["os"])
    def test_too_late_and_wrong(): assert_context_independent(library.guarded, imports=["os"])
    def test_same():
        assert_context_independent(lambda: [library.guarded()], same=lambda one, other: type(one) is type(other))
    def test_no_function(): assert_context_independent(3)
    def test_nothing_is_left():
        assert library.guarded() == "mnnvl" and library.current.__code__.co_names == ("_current_vllm_config",)
""",
        "--junitxml=junit.xml",
        "-p",
        "no:randomly",
    )
    found = findings(pytester.path / "junit.xml")
    here = "test_it"
    assert found == {
        "test_config": ["depends-on-context:library.guarded@library.guarded"],
        "test_raising": ["depends-on-context:library.raising@library.raising"],
        "test_in_a_context": ["depends-on-context:library.guarded@library.guarded"],
        "test_environment": [f"depends-on-environment:library.by_environment@{here}.test_environment"],
        "test_import": [f"depends-on-import:library.by_import@{here}.test_import"],
        "test_own_cache": ["depends-on-order:library.own_cache@library.guarded"],
        "test_inner_cache": ["depends-on-order:library.inner_cache@library.guarded"],
        "test_hidden_cache": [f"depends-on-order:library.hidden_cache@{here}.test_hidden_cache"],
        "test_lazy": ["leak:library.pool@library.make_pool"],
        "test_a_context_of_ones_own": [f"depends-on-context:library.by_environment@{here}.test_a_context_of_ones_own"],
        **{name: [] for name in ("test_none", "test_broken", "test_too_late", "test_same", "test_no_function")},
        "test_too_late_and_wrong": ["depends-on-context:library.guarded@library.guarded"],
        "test_nothing_is_left": [],
    }
    result.assert_outcomes(passed=4, failed=12, skipped=1)
    printed = text(result)
    assert (
        "library.guarded answers 'trtllm' in the configuration context, then 'mnnvl' without it; in fresh caches, "
        "'mnnvl' without it, then 'trtllm' in the configuration context (read outside of a context by 2 x "
        "library.guarded)"
    ) in printed
    assert "answers 'trtllm' with BACKEND=trtllm, then 'mnnvl' without it" in printed
    assert "answers 'slow' without it, then 'fast' after the import of late" in printed
    assert "True in the configuration context, then AssertionError(Current vLLM config is not set" in printed
    assert "an unregistered cache keeps its answer" in printed
    assert "'resolver' is 3; accepted: a function" in printed


def test_the_marker_option(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(library=_LIBRARY)
    result = run(
        _HEAD
        + """
    ran = []

    @fresh_config_context(resolvers="library:guarded")
    def test_depends(): ran.append("depends")

    @known_fault("depends-on-context:library.guarded@library.guarded", package="vllm", versions=">=0", reason="guard")
    @fresh_config_context(resolvers=["library:unread", library.guarded])
    def test_known(): pass

    @fresh_config_context(strict=True, resolvers=partial(library.unread))
    def test_does_not(): ran.append("does not")

    @fresh_config_context(strict=True, singletons="vllm.*", resolvers=lambda: library.guarded() and "same")
    def test_reads_of_the_check_are_not_the_tests(): pass

    @fresh_config_context(resolvers="library:no.such")
    def test_unknown(): pass

    def test_ran(): assert ran == ["does not"]
""",
        "--junitxml=junit.xml",
        "-p",
        "no:randomly",
    )
    result.assert_outcomes(passed=3, failed=2, xfailed=1)
    found = findings(pytester.path / "junit.xml")
    assert found["test_depends"] == ["depends-on-context:library.guarded@library.guarded"]
    assert "no resolver 'library:no.such': " in text(result)


@pytest.mark.parametrize("value", ["'library'", "3", "[]", "['library:guarded', None]"])
def test_wrong_resolvers_stop_collection(run: Run, value: str) -> None:
    result = run(
        f"""
    from pytest_gpuinvariants import fresh_config_context
    @fresh_config_context(resolvers={value})
    def test_it(): pass
"""
    )
    result.assert_outcomes(errors=1)
    assert "accepted: a function without arguments or 'module:qualname', or several in a list" in text(result)
