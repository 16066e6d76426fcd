"""Tests of rljax/run/evaluation."""
