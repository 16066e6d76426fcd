"""Tests. A package, so that those of an installed distribution do not take its name."""
