"""Benchmarks of what is on the path of a token, as ratios against a yardstick of the same run."""
