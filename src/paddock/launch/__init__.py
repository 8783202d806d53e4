"""From a request to a plan that is ready to run; the memo of that plan; containers and shims."""
