"""`make demo`: a TrainingJob on a cluster of this machine does what the demo promises, and leaves nothing behind."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.examples.test_digits_demo import run


@pytest.mark.timeout(240)
def test_demo_on_a_cluster(tmp_path: Path) -> None:
    picture = tmp_path / "demo.svg"

    done = run("-m", "examples.digits.cluster_demo", "--plain", "--svg", str(picture), seconds=220)

    assert done.returncode == 0, done.stdout + done.stderr
    for pattern in (
        r"trainers +1 -> [4-8], as many as there is room for",
        r"the service asked for room -> it runs +\d\.\d s, \d -> \d trainers",
        r"the service went -> its room is used again +\d+\.\d s",
        r"pserver killed -> it serves again +\d+\.\d s",
        r"decisions +\d+ changes of size",
    ):
        assert re.search(pattern, done.stdout), done.stdout[-3000:]
    recognised = re.search(r"held-out digits recognised +(\d+\.\d)%", done.stdout)
    assert recognised is not None
    assert float(recognised[1]) >= 93.0
    svg = picture.read_text()
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    for words in ("service wants 3 cores", "service runs", "SIGKILL pserver", "restored", "trainers", "images / s"):
        assert f">{words}<" in svg
