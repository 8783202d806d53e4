"""Decides whether a tool call is allowed, before anything is opened or run."""
