"""Tests of rljax/host."""
