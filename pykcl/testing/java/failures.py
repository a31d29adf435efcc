"""What can go wrong for a Java worker that it answers by trying again later."""


class DependencyFailed(Exception):
    """Java's DependencyException, ProvisionedThroughputException and such: the table or the stream did not serve."""


class RowUnreadable(DependencyFailed):
    """What Java meets as a NullPointerException or NumberFormatException: one such row fails the scan of the table."""
