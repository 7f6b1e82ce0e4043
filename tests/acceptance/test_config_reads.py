"""Reads of vLLM's configuration outside of a context, as a test run tells them."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import Run, text
from tests.acceptance.test_fresh_context import findings

pytest.importorskip("vllm")

_LIBRARY = """
# Its names are taken at import, which is before any test begins.
from vllm.config import get_current_vllm_config, get_current_vllm_config_or_none as current
from vllm.config.vllm import get_cached_compilation_config

class Layer:
    def __init__(self): self.config = current()
    @property
    def strict(self): return get_current_vllm_config()

def cached(): return get_cached_compilation_config()

def unread(): return 1
"""
_HEAD = """
    import threading
    import pytest
    import library
    from vllm.config import VllmConfig, set_current_vllm_config
    from pytest_gpuinvariants import fresh_config_context
"""
_NONE = "config-read:get_current_vllm_config_or_none"


def test_reads_are_recorded_by_any_name_and_on_any_thread(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(library=_LIBRARY)
    result = run(
        _HEAD
        + """
    @fresh_config_context
    def test_lenient():
        for _ in range(3): library.Layer()
        with pytest.raises(AssertionError, match="config is not set"): library.Layer().strict
        with pytest.raises(AssertionError, match="config is not set"): library.cached()
        assert 0, "for the sections"

    @fresh_config_context(strict=True)
    def test_strict():
        for _ in range(3): library.Layer()

    @fresh_config_context(strict=True)
    def test_raising():
        layer = object.__new__(library.Layer)
        with pytest.raises(AssertionError): layer.strict

    @fresh_config_context(strict=True)
    def test_in_threads():
        threads = [threading.Thread(target=library.Layer, name=f"reader-{index}") for index in range(2)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()

    @fresh_config_context(strict=True)
    def test_in_context():
        with set_current_vllm_config(VllmConfig()):
            layer = library.Layer()
            assert layer.config is layer.strict and library.cached() is layer.config.compilation_config
        assert library.unread() == 1

    @fresh_config_context(strict=True, allow_reads="library.Layer.*")
    def test_allowed(): library.Layer()

    @fresh_config_context(strict=True, allow_reads=["library.Layer.strict", "library.other"])
    def test_allows_another(): library.Layer()

    @fresh_config_context(strict=True)
    def test_only_at_teardown(request):
        request.addfinalizer(library.Layer)

    def test_unmarked():
        assert library.Layer().config is None
        assert library.current.__code__.co_names == ("_current_vllm_config",)  # as it was
""",
        "--junitxml=junit.xml",
        "-vv",
        "-p",
        "no:randomly",
    )
    result.assert_outcomes(passed=4, failed=5, errors=1)
    found = findings(pytester.path / "junit.xml")
    assert found == {
        "test_lenient": [],
        "test_strict": [f"{_NONE}@library.Layer.__init__"],
        "test_raising": ["config-read:get_current_vllm_config@library.Layer.strict"],
        "test_in_threads": [f"{_NONE}@library.Layer.__init__"],
        "test_in_context": [],
        "test_allowed": [],
        "test_allows_another": [f"{_NONE}@library.Layer.__init__"],
        "test_only_at_teardown": [f"{_NONE}@library.Layer.__init__"],
        "test_unmarked": [],
    }
    printed = text(result)
    assert "library.Layer.__init__ got None (3 times)" in printed
    assert "thread: reader-0" in printed
    assert "thread: reader-1" in printed
    result.stdout.fnmatch_lines(
        [
            "*config reads outside of a context*",
            "4 x library.Layer.__init__: get_current_vllm_config_or_none() gave None",
            "1 x library.Layer.strict: get_current_vllm_config() gave AssertionError",
            "1 x library.cached: get_current_vllm_config() gave AssertionError",
        ]
    )
    result.stdout.fnmatch_lines(
        ["reads of vLLM's configuration outside of a context:", "  12 x library.Layer.__init__: *gave None"]
    )
    reads = findings(pytester.path / "junit.xml", "config_read")
    assert reads["test_allowed"] == ["1 x library.Layer.__init__"]
    assert reads["test_in_context"] == reads["test_unmarked"] == []


def test_no_reader_is_lost_when_there_are_very_many(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(library=_LIBRARY)
    result = run(
        _HEAD
        + """
    @fresh_config_context(strict=True, allow_reads="library.Layer.__init__")
    def test_it():
        source = "\\n".join(["def many():"] + ["    library.Layer()"] * 300)
        exec(source, namespace := {"library": library})
        namespace["many"]()
        with pytest.raises(AssertionError): library.cached()
""",
        "--junitxml=junit.xml",
    )
    result.assert_outcomes(failed=1)
    assert findings(pytester.path / "junit.xml")["test_it"] == ["config-read:get_current_vllm_config@library.cached"]
    assert findings(pytester.path / "junit.xml", "config_read")["test_it"] == [
        "300 x library.Layer.__init__",
        "1 x library.cached",
    ]


def test_vllm_imported_by_the_test_itself(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(library=_LIBRARY)
    result = run(
        """
    import sys
    from pytest_gpuinvariants import fresh_config_context

    @fresh_config_context(strict=True)
    def test_imports():
        assert "vllm.config" not in sys.modules
        import library
        library.Layer()
        import vllm.config.vllm as config
        config._current_vllm_config = config.VllmConfig()
        library.cached()
        config._current_vllm_config = None

    def test_between():
        import vllm.config.vllm as config
        assert config.get_cached_compilation_config.cache_info().currsize == 0

    @fresh_config_context
    def test_after():
        import vllm.config.vllm as config
        config._current_vllm_config = config.VllmConfig()
        config.get_cached_compilation_config()

    def test_last():
        import vllm.config.vllm as config
        assert config._current_vllm_config is None
        assert config.get_cached_compilation_config.cache_info().currsize == 0
""",
        "--junitxml=junit.xml",
        "-p",
        "no:randomly",
    )
    result.assert_outcomes(passed=3, failed=1, errors=1)
    found = findings(pytester.path / "junit.xml")
    assert found["test_imports"] == [f"{_NONE}@library.Layer.__init__"]
    assert found["test_after"] == ["leak:vllm.current_config@test_it.test_after"]
