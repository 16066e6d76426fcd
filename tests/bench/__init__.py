"""Tests of rljax/bench."""
