"""Tests of rljax/sampling."""
