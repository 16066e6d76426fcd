"""Tests of rljax/config."""
