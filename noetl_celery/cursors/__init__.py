"""Claim drivers: sources that hand out work rows, behind one protocol and one registry."""
