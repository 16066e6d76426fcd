"""Tests of rljax/environments/worlds."""
