"""Shared parts of the tests on the real kernel: an unprivileged user, an installation, probes, and
targets outside the sandbox.
"""
