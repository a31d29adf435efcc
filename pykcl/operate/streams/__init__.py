"""Looking into a stream, putting records into it, and telling what it is: without a lease, beside any fleet."""
