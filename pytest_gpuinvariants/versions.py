"""Which version of a package is installed."""

from __future__ import annotations

from importlib import metadata

from packaging.requirements import Requirement


def installed(name: str) -> str | None:
    """Version of an installed distribution, None without it."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def satisfied(requires: str) -> bool | None:
    """Whether the installed version of a package is one that a requirement such as ``vllm>=0.33,<0.34`` names.

    Args:
        requires: a requirement; its extras and markers are not looked at.

    Returns:
        None where the package is not installed.
    """
    requirement = Requirement(requires)
    found = installed(requirement.name)
    return None if found is None else requirement.specifier.contains(found, prereleases=True)
