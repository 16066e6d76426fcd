"""Tests of rljax/data."""
