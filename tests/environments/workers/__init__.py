"""Tests of rljax/environments/workers."""
