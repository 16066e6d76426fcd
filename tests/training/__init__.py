"""Tests of rljax/training."""
