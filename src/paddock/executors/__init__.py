"""Where commands run: one interface, and one file for each executor."""
