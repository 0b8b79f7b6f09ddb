"""Speed as ratios, each to a baseline measured in the same run: ``python -m benchmarks`` or ``make bench``."""
