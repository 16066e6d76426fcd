"""Tests of rljax/run/records."""
