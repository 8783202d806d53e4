"""What the contract asks for, by what it is about. The last check ends the place."""

from paddock.testing.checks import results, inputs, shells, endings  # noqa: F401, I001 (they come in this order)
