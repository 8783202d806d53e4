"""One file for each way to write a policy (TOML, conf, flags, config.json), and the tables they
share.
"""
