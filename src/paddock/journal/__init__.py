"""The journal, read side. The core is the only writer; what it wrote is read, checked and shown
here.
"""

from paddock.journal.chain import ChainReport, verify
from paddock.journal.reader import Event, Journal, Loss

__all__ = ["ChainReport", "Event", "Journal", "Loss", "verify"]
