"""What speaks HTTP for the sandbox: routes, credentials, inspection. The core relays everything
else by itself.

```
relay ══ channel.py: connections of clients, and those that are dialled ══► server.py ─► exchange.py ─► upstream.py
                                                                                              │
supervisor ◄════════════════════ each decision: an event of layer "request" ◄═════════════════┘
```

- ``route_table.py`` knows where a connection leads and which requests may go there.
  ``endpoints.py`` compares paths.
- ``credentials.py`` reads the secrets and takes them out of answers.
- ``message.py`` is the grammar of HTTP/1.1, and ``headers.py`` what happens to a message on its
  way. Neither has sockets. ``http1.py`` and ``http2.py`` the client's side of each version;
  ``connection.py`` a socket without HTTP.
- ``inspection.py`` makes the certificates with which the TLS of an inspected host ends here.

It is imported only where a session has routes or inspected hosts.
"""
