"""The controller of elastic training jobs: one program per cluster that turns jobs into pods and scales them."""
