"""The changes of a copy-on-write session, and how they are applied to the workspace.

    upper + lower ─ scan ─► changes ─ renames ─► judge ─► changes with obstacles ─ apply ─► target
                                                   ▲                                 │
                                masked, protected, host changes ◄─ record ◄──────────┘

*lower* is the workspace of the host. *upper* has what an overlay mounted with ``userxattr``
collected over it. An untrusted program wrote upper, and any process may change lower during the
review. So no path is resolved as a string: every component is opened with O_NOFOLLOW relative to
the descriptor of its parent (``dir_fd_access.py``).
"""
