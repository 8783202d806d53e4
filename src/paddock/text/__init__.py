"""Text and paths, without policy or plan: printable text, secrets, resolved paths."""
