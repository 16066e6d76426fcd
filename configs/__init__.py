"""Shipped configs: each file's header gives its command, hardware, expected time and expected score."""
