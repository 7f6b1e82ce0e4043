"""Makes pytest's own plugin-testing fixture available; pytest wants this in the root conftest."""

from __future__ import annotations

pytest_plugins = ["pytester"]
