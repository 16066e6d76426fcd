"""Tests of rljax/transforms."""
