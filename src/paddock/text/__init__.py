"""Text and paths, without policy or plan: what is printable, what is secret, where a path leads."""
