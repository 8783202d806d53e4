"""The programs that a shell line would start. Pure: it reads only the tables beside it, and runs
nothing.
"""
