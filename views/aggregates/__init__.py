"""Aggregates: what a view may answer, each a mergeable state with its laws."""

from __future__ import annotations

from views.aggregates.algebra import Aggregate, Algebra, Position
from views.aggregates.counting import Average, Count, StdDev, Sum, Variance
from views.aggregates.decayed_rate import DecayedRate
from views.aggregates.distinct import Distinct
from views.aggregates.extremes import First, Last, Max, Min
from views.aggregates.first_k import FirstK, Largest, LastK, Smallest
from views.aggregates.histogram import Histogram
from views.aggregates.moments import Kurtosis, Skewness
from views.aggregates.quantiles import Quantiles
from views.aggregates.top_k import TopK
from views.aggregates.trend import Trend
from views.aggregates.value_counts import UniqueValues, ValueCounts

__all__ = [
    "Aggregate",
    "Algebra",
    "Average",
    "Count",
    "DecayedRate",
    "Distinct",
    "First",
    "FirstK",
    "Histogram",
    "Kurtosis",
    "Largest",
    "Last",
    "LastK",
    "Max",
    "Min",
    "Position",
    "Quantiles",
    "Skewness",
    "Smallest",
    "StdDev",
    "Sum",
    "TopK",
    "Trend",
    "UniqueValues",
    "ValueCounts",
    "Variance",
]
