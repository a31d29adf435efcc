"""The readers that `benchmarks.peers` measures, one process each."""
