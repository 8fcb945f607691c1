"""Tests of the package, on a tiny model and the program that TANDEM_COORDINATOR names."""
