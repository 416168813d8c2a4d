"""Typed access to the fields of a Hugging Face ``config.json``, with errors that name the field.

Knows types and aliases, not what a field means.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from simserve.errors import ProfileError

ValueT = TypeVar("ValueT")

_LARGEST = 2**40  # Largest whole number of any field: a thousand times the largest vocabulary or context.

_LARGEST_OF = dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers"), 10_000) | dict.fromkeys(
    ("num_local_experts", "num_experts", "n_routed_experts", "num_attention_heads", "n_head"), 100_000
)
"""Limits of fields that are counted one by one; published models stay below 1 % of them."""


class ConfigReader:
    """The fields of one configuration; a null counts as absent.

    Args:
        config: The parsed mapping.
        file: File it was read from, for errors.
    """

    def __init__(self, config: Mapping[str, Any], file: object) -> None:
        self._config = config
        self.file = file

    def value(self, *keys: str) -> Any:
        """Return the first of several names that is present, or None."""
        return next((self._config[key] for key in keys if self._config.get(key) is not None), None)

    def integer(self, *keys: str, default: int | None = None, minimum: int = 1) -> int:
        """Return a whole number under the first of several names that is present.

        Raises:
            ProfileError: It is absent and has no default, is not a whole number, is below ``minimum``, or larger than
                any model could be.
        """
        key = next((key for key in keys if self._config.get(key) is not None), None)
        if key is None:
            if default is None:
                remedy = f"also read under {', '.join(keys[1:])}" if len(keys) > 1 else None
                raise ProfileError("is missing", file=self.file, key=keys[0], remedy=remedy)
            return default
        value = self._config[key]
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self.refusal(f"must be a whole number of at least {minimum}", key)
        largest = _LARGEST_OF.get(key, _LARGEST)
        if value > largest:
            raise self.refusal(f"must be at most {largest:,}", key)
        return int(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """Return a switch.

        Raises:
            ProfileError: It is neither true nor false.
        """
        value = self._config.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refusal("must be true or false", key)
        return value

    def choice(self, choices: Mapping[str, ValueT], *keys: str, default: str | None = None) -> ValueT:
        """Return the choice named by the text under the first of several keys that is present.

        Raises:
            ProfileError: It is absent and has no default, or is not one of ``choices``.
        """
        key = next((key for key in keys if self._config.get(key) is not None), None)
        value = default if key is None else self._config[key]
        if value is None:
            raise ProfileError("is missing", file=self.file, key=keys[0])
        text = str(value).removeprefix("torch.")
        if text not in choices:
            raise self.refusal("must be one of " + ", ".join(choices), key or keys[0])
        return choices[text]

    def mapping(self, key: str) -> Mapping[str, Any] | None:
        """Return a nested block, or None.

        Raises:
            ProfileError: It is not a mapping.
        """
        value = self._config.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.refusal("must be a mapping", key)
        return value

    def sequence(self, key: str) -> list[Any] | None:
        """Return a list, or None.

        Raises:
            ProfileError: It is not a list.
        """
        value = self._config.get(key)
        if value is None:
            return None
        if not isinstance(value, list):
            raise self.refusal("must be a list", key)
        return value

    def refusal(self, rule: str, key: str) -> ProfileError:
        """Return the error that ``key`` breaks ``rule``, with its value, to be raised."""
        return ProfileError(rule, file=self.file, key=key, value=self._config.get(key))
