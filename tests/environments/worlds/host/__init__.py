"""Tests of rljax/environments/worlds/host."""
