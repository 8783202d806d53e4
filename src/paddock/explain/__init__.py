"""Answers about a plan: why, dry run and observe."""
