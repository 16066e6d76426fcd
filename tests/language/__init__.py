"""Tests of rljax/language."""
