"""Tests of rljax/environments/verifiers."""
