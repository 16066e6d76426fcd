"""Tests of rljax/aot."""
