"""Tests of rljax/algorithms."""
