"""Tests of rljax/environments."""
