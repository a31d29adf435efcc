"""AWS requests of operators that no worker sends: streams, single rows, scans, IAM and metrics."""
