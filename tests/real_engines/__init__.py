"""The schedulers of real engines, run without a GPU beside the kernel. See ``README.md`` in this folder."""
