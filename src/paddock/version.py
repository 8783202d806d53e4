"""The version of the package. Every package may import it."""

__version__ = "0.1.0"
