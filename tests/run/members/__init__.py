"""Tests of rljax/run/members."""
