"""Tests of rljax/run."""
