"""Accelerators of other vendors, by the protocol of HAMi and the vendors' device plugins: a plugin
registers devices on its node, the controller chooses and writes a pod's allocation, and the plugin
reads it."""

from __future__ import annotations

from queuecontroller.gpushares.vendors.asks import Ask, AskError, PodAsk
from queuecontroller.gpushares.vendors.cards import Card
from queuecontroller.gpushares.vendors.placing import (
    allocation,
    asks_of,
    cards_of,
    fit,
    quota_of,
)
from queuecontroller.gpushares.vendors.rules import Changes, Vendor
from queuecontroller.gpushares.vendors.table import ROWS
from sluicecommon.hami.devices import BadRegister, Device, Given, Part

__all__ = [
    "ROWS",
    "Ask",
    "AskError",
    "BadRegister",
    "Card",
    "Changes",
    "Device",
    "Given",
    "Part",
    "PodAsk",
    "Vendor",
    "allocation",
    "asks_of",
    "cards_of",
    "fit",
    "quota_of",
]
