"""Property tests: few examples in each run, more by hand with ``--hypothesis-profile=thorough``."""

from __future__ import annotations

from hypothesis import settings

# A loaded machine may take any time for one example; the deadline of a test is pytest-timeout's.
settings.register_profile("quick", max_examples=50, deadline=None)
settings.register_profile("thorough", max_examples=5000, deadline=None)
settings.load_profile("quick")
