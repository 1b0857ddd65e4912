"""What the chaos tests of one file share, if they like: a system without workers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness import arena
from nodes import Cluster


@pytest.fixture(scope="module")
def system(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Services, the ledger and the playbooks; the tests of a file start workers on it. ``SETTINGS`` of the file are
    those of the workers."""
    settings: dict[str, str] = getattr(request.module, "SETTINGS", {})
    with arena(tmp_path_factory.mktemp("chaos"), **settings) as made:
        yield made
