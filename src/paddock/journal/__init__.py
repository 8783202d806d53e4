"""Reads, verifies and shows the journal. The core is its only writer."""

from paddock.journal.chain import ChainReport, verify
from paddock.journal.reader import Event, Journal, Loss

__all__ = ["ChainReport", "Event", "Journal", "Loss", "verify"]
