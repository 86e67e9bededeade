"""Programs that measure speed, privacy and quality. `python -m benchmarks` runs all. No service code imports them."""
