"""Whether a tool call is allowed: decided before anything is opened or run."""
