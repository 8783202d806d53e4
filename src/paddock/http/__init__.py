"""The HTTP helper: routes, credentials, inspection. The core relays every other connection itself.

```
relay ══ channel.py: client connections, dialled connections ══► server.py
                                                                     │
                                     upstream.py ◄── exchange.py ◄───┤
                                                                     │
supervisor ◄════════ each decision: an event of layer "request" ◄════┘
```

- ``route_table.py`` has the destination of a connection and the requests that are allowed there.
  ``endpoints.py`` compares paths.
- ``credentials.py`` reads the secrets. ``secret_scrubber.py`` removes them from answers.
- ``message.py`` is the grammar of HTTP/1.1. ``headers.py`` changes messages in transit. Neither has
  sockets.
- ``http1.py`` and ``http2.py`` are the client side of each version. ``connection.py`` is a socket
  without HTTP.
- ``inspection.py`` makes the certificates that terminate the TLS of an inspected host.

It is imported only if a session has routes or inspected hosts.
"""
