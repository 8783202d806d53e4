"""What a copy-on-write session changed, and the way of those changes into the workspace.

    upper + lower ─ scan ─► changes ─ renames ─► ─ judge ─► changes with obstacles ─ apply ─► the workspace
                                                     ▲                                 │
                                  masked, protected, host changes ◄─ record ◄──────────┘

*lower* is the workspace as the host has it, *upper* what an overlay mounted with ``userxattr``
collected on top of it. Upper was written by an untrusted program, and lower may be changed by
anybody while it is looked at. So no path is ever resolved as a string: every component is opened
with O_NOFOLLOW relative to its parent's descriptor (``tree.py``).
"""
