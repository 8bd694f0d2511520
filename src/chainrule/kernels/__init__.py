"""Compiled decoding: the step of a model as a program of a few operations, executed by functions compiled by Numba."""
