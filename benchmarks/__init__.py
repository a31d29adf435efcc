"""Benchmarks, run by hand: `make bench`. Numbers and machine are kept in docs/about/performance.md."""
