"""What other people's code imports."""

from __future__ import annotations

import subprocess
import sys

import pytest

import edl_controller


@pytest.mark.parametrize("name", edl_controller.__all__)
def test_every_public_name_is_there_and_explained(name: str) -> None:
    assert getattr(edl_controller, name).__doc__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = edl_controller.nonsense


def test_nothing_is_loaded_before_it_is_used() -> None:
    code = "import sys, edl_controller; print(sorted(m for m in sys.modules if m.startswith('edl_controller.')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.strip() == "[]"
