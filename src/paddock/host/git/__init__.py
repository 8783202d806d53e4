"""Reads git repositories on this machine from git's own files. No git is run: in a repository that
a command could write, git itself would run planted programs.
"""
