"""Tests of rljax/transforms/source."""
