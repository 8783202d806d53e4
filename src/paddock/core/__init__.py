"""Start paddock-core and talk to it."""
