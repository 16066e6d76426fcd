"""Tests of rljax/methods."""
