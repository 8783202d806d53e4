"""Which files count: their location, their owner, and whether an earlier run could write them."""
