"""Benchmarks: data sets, networks, tasks (`python -m benchmarks TASK`), and one script for each question."""
