"""The version of this package, as results, pages and files name it; below everything that does."""

__version__ = "0.2.0"
