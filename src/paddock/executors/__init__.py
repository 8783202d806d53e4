"""Where commands run: the seam, and one file for each place."""
