"""THE FRONT DOOR: what users import and type.

    from tidemark import Count, Distinct, Source, View

A file of declarations needs nothing else. Names are imported on first use, so that the command line starts
without them; none of them loads Spark or FastAPI.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from views.aggregates import (
        Average,
        Count,
        DecayedRate,
        Distinct,
        First,
        FirstK,
        Histogram,
        Kurtosis,
        Largest,
        Last,
        LastK,
        Max,
        Min,
        Quantiles,
        Skewness,
        Smallest,
        StdDev,
        Sum,
        TopK,
        Trend,
        UniqueValues,
        ValueCounts,
        Variance,
    )
    from views.alert import Alert
    from views.derived import Derived, Ratio
    from views.feed import Feed
    from views.source import Source
    from views.view import View
    from views.watch import Watch

__all__ = [
    "Alert",
    "Average",
    "Count",
    "DecayedRate",
    "Derived",
    "Distinct",
    "Feed",
    "First",
    "FirstK",
    "Histogram",
    "Kurtosis",
    "Largest",
    "Last",
    "LastK",
    "Max",
    "Min",
    "Quantiles",
    "Ratio",
    "Skewness",
    "Smallest",
    "Source",
    "StdDev",
    "Sum",
    "TopK",
    "Trend",
    "UniqueValues",
    "ValueCounts",
    "Variance",
    "View",
    "Watch",
]

_HOMES = {
    "Alert": "views.alert",
    "Average": "views.aggregates",
    "Count": "views.aggregates",
    "DecayedRate": "views.aggregates",
    "Derived": "views.derived",
    "Distinct": "views.aggregates",
    "Feed": "views.feed",
    "First": "views.aggregates",
    "FirstK": "views.aggregates",
    "Histogram": "views.aggregates",
    "Kurtosis": "views.aggregates",
    "Largest": "views.aggregates",
    "Last": "views.aggregates",
    "LastK": "views.aggregates",
    "Max": "views.aggregates",
    "Min": "views.aggregates",
    "Quantiles": "views.aggregates",
    "Ratio": "views.derived",
    "Skewness": "views.aggregates",
    "Smallest": "views.aggregates",
    "Source": "views.source",
    "StdDev": "views.aggregates",
    "Sum": "views.aggregates",
    "TopK": "views.aggregates",
    "Trend": "views.aggregates",
    "UniqueValues": "views.aggregates",
    "ValueCounts": "views.aggregates",
    "Variance": "views.aggregates",
    "View": "views.view",
    "Watch": "views.watch",
}
"""Public name -> the module that defines it."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tidemark' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
