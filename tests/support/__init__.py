"""What tests on the real kernel share: an unprivileged user, the installation he can reach, probes,
witnesses.
"""
