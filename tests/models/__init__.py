"""Tests of rljax/models."""
