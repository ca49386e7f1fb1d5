"""Sensor readings, lowest, highest and average: many small devices (IoT), some of them broken."""

from __future__ import annotations

from tidemark import Alert, Average, Count, Last, Max, Min, Source, StdDev, View

sensors = Source(
    "sensors",
    fields="""
        reading_id string,
        measured_at timestamp,
        sensor string,
        celsius double,
        battery_percent int
    """,
    # The fields for id and time may have any name.
    id_field="reading_id",
    time_field="measured_at",
    doc="Temperatures measured by devices. Some readings arrive late or twice.",
)

# A reading of -127 means that the sensor is broken. It becomes null, which every answer except Count() ignores.
VALID = "case when celsius between -60 and 150 then celsius end"

sensor_readings = View(
    "sensor_readings",
    source=sensors,
    grain="15m",
    keys={"sensor": "sensor"},
    answers={
        "readings": Count(),
        "valid": Count(VALID),  # counts the events for which the expression is not null
        "lowest": Min(VALID),
        "highest": Max(VALID),
        "average": Average(VALID),
        "deviation": StdDev(VALID),
        "battery": Last("battery_percent"),
    },
    doc="Lowest, highest and average temperature of each sensor, and the charge of its battery.",
)

silent_sensor = Alert("silent_sensor", sensor_readings, silence="1h", doc="A sensor sent no reading for an hour.")
