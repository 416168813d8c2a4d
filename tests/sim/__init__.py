"""Tests of the cluster on its clock."""
