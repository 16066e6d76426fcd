"""Tests of rljax/environments/problems."""
