"""Makes tool calls: judge, ask, journal, do."""
