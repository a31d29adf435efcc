"""Runs every benchmark, one process each, and says which goals were met."""

import subprocess
import sys

BENCHMARKS = ("read_path", "deaggregation", "lease_scan", "idle_leases")


def main() -> int:
    chosen = sys.argv[1:] or BENCHMARKS
    results = {}
    for name in chosen:
        print(f"== {name}", flush=True)
        results[name] = subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode
    for name, code in results.items():
        print(f"{name}: {'goals met' if code == 0 else 'GOAL MISSED'}")
    return max(results.values())


if __name__ == "__main__":
    sys.exit(main())
