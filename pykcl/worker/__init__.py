"""The threads: one LeaseManager, one LeaseRenewer, one LeaseWorker per lease, and what they share.

They act on what `planning` decides, through the `ports`; only `worker.py` knows which adapters stand behind them.
"""
