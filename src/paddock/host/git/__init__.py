"""What a repository on this machine says, read from git's own files. No git is run: in a repository
that a command could write, git itself would run what was planted there.
"""
