"""The journal, read side. The core is the only writer; what it wrote is read, checked and shown here."""

from paddock.journal.chain import Verdict, verify
from paddock.journal.reader import Event, Journal, Loss

__all__ = ["Event", "Journal", "Loss", "Verdict", "verify"]
