"""Defines the colours of states, once for the workbook and the pages."""

from collections.abc import Mapping
from types import MappingProxyType

STATE_COLOURS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "in_doubt": ("#FFE699", "#6B5100"),
        "rejected": ("#F8CBAD", "#833C0B"),
        "returned": ("#F4B0B0", "#7B1F1F"),
        "invalid": ("#E4D0EE", "#5B2C6F"),
        "ready": ("#CFE2F3", "#1F4E78"),
        "accepted": ("#E2F0D9", "#385723"),
        "paid": ("#A9D18E", "#274E13"),
    }
)
"""State -> (fill, ink) on white; the states that need a person are first. Each pair can be read in grey as well."""
DARK_STATE_COLOURS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "in_doubt": ("#574400", "#FFDD75"),
        "rejected": ("#63290B", "#FFBF9E"),
        "returned": ("#631C1C", "#FFB8B8"),
        "invalid": ("#4A2759", "#E6C8F2"),
        "ready": ("#143A59", "#B0D7F7"),
        "accepted": ("#2A4120", "#C6E3B4"),
        "paid": ("#234D12", "#B5E39A"),
    }
)
"""The same on a dark page."""
