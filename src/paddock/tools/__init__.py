"""Tool calls that are really made: judged, asked about, journaled, done."""

from paddock.tools.commands import CommandResult
from paddock.tools.dispatch import Tools
from paddock.tools.files import Limits
from paddock.tools.result import Entry, FileText, FileWritten, Listing, ToolOutcome, ToolResult

__all__ = [
    "CommandResult",
    "Entry",
    "FileText",
    "FileWritten",
    "Limits",
    "Listing",
    "ToolOutcome",
    "ToolResult",
    "Tools",
]
