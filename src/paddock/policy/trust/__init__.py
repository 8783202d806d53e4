"""Which files count: where they lie, to whom they belong, and whether an earlier run could write
them.
"""
