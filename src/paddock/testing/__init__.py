"""The contract that executors of other programs must pass."""
