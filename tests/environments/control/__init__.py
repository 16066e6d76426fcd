"""Tests of rljax/environments/control."""
