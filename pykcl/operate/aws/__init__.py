"""AWS requests of operators that no worker sends: streams, the lease table and IAM."""
