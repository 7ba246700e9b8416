"""Reads YAML files, in which no mapping may have a key twice."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

YAML_ERRORS = (OSError, ValueError, RecursionError, yaml.YAMLError)
"""Errors that `read_yaml` raises; the text of each names the fault, and the line where it can."""


def read_yaml(path: Path) -> Any:
    """Return the value that a YAML file describes. Raises one of `YAML_ERRORS`."""
    return yaml.load(path.read_text("utf-8"), _Loader)


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Reads YAML as `yaml.safe_load` does, but refuses a key that a mapping has twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Return the mapping. Raises ConstructorError, which names the line, if a key is there twice."""
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key.value!r} is there twice", key.start_mark
                    )
                seen.add((key.tag, key.value))
        found: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return found
