"""The Python API: sessions in which an agent runs commands and tools."""
