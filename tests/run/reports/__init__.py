"""Tests of rljax/run/reports."""
