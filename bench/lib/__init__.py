"""Shared parts of the benchmarks: processes under test, the load tool, tables and plots."""
