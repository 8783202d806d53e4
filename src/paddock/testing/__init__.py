"""For people who build on Paddock: what their own executors have to pass."""
