"""Tests. A package, so that a package of the same name that a dependency installs does not hide it."""
