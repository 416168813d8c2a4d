"""`python -m simserve` is `simserve`."""

from simserve.cli.main import command

command()
