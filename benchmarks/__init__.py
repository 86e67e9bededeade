"""Programs that measure speed, privacy and quality. `python -m benchmarks` runs all. Only tests import them."""
