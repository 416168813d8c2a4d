"""Random numbers that were drawn before they are needed: the engine takes them in turn, and draws none itself."""

from __future__ import annotations

from array import array


class Uniforms:
    """Numbers from [0, 1).

    Attributes:
        values: They.
        place: Where the next one lies, and how many there are: two entries, which whoever adds numbers sets anew.
    """

    __slots__ = ("place", "values")

    def __init__(self, room: int) -> None:
        """Make room for so many, of which none has been drawn."""
        self.values = array("d", [0.0]) * room
        self.place = array("q", [0, 0])


def num_left(uniforms: Uniforms) -> int:
    """Return how many have not been taken."""
    return uniforms.place[1] - uniforms.place[0]


def take_uniform(uniforms: Uniforms) -> float:
    """Return the next one, of which there is at least one left."""
    place = uniforms.place[0]
    uniforms.place[0] = place + 1
    return uniforms.values[place]
