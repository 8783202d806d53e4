"""Tool calls that are really made: judged, asked about, journaled, done."""
