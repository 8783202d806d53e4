"""Runs a command under the sandlock library and prints its output. It may reach one host and port.

    peer_sandlock_network.py net_allow|http_allow HOST PORT COMMAND …

``http_allow`` reads every request and compares its method, host and path; ``net_allow`` compares
addresses.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any


def main() -> None:
    kind, host, port, *command = sys.argv[1:]
    places = [
        "/usr",
        "/lib",
        "/lib64",
        "/bin",
        "/etc",
        "/proc",
        "/dev",
        command[0].rpartition("/")[0],
    ]
    rules: dict[str, dict[str, Any]] = {
        "net_allow": {"net_allow": [f"{host}:{port}"]},
        "http_allow": {"http_allow": [f"GET {host}/*"], "http_ports": [int(port)]},
    }
    result = (
        importlib.import_module("sandlock").Sandbox(fs_readable=places, **rules[kind]).run(command)
    )
    if not result.success:
        sys.exit(f"sandlock: {result}")
    text = result.stdout
    print((text.decode() if isinstance(text, bytes) else text).strip())


main()
