"""Speed as ratios: each subject is measured in one run with its baseline. ``python -m benchmarks`` or ``make bench``."""
