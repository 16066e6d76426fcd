"""Tests of rljax/run/producers."""
