"""Tests of the scheduler: the kernel, and the walker that it must agree with."""
