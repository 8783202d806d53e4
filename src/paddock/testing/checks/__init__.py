"""The checks of the contract, by subject. The last check disposes of the executor."""

from paddock.testing.checks import results, inputs, shells, endings  # noqa: F401, I001 (they come in this order)
