"""The messages of OTLP logs in Protobuf: what the door reads of opentelemetry-proto, built when this is imported.

Field numbers are those of its logs.proto, which are stable. A field that is not here is skipped.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "tidemark.otlp"
Type = descriptor_pb2.FieldDescriptorProto
SCALARS = {
    "string": Type.TYPE_STRING,
    "bool": Type.TYPE_BOOL,
    "int32": Type.TYPE_INT32,
    "int64": Type.TYPE_INT64,
    "uint32": Type.TYPE_UINT32,
    "double": Type.TYPE_DOUBLE,
    "bytes": Type.TYPE_BYTES,
    "fixed32": Type.TYPE_FIXED32,
    "fixed64": Type.TYPE_FIXED64,
}
MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "ExportLogsServiceRequest": {"resource_logs": (1, "*ResourceLogs")},
    "ResourceLogs": {"resource": (1, "Resource"), "scope_logs": (2, "*ScopeLogs")},
    "Resource": {"attributes": (1, "*KeyValue")},
    "ScopeLogs": {"scope": (1, "InstrumentationScope"), "log_records": (2, "*LogRecord")},
    "InstrumentationScope": {"name": (1, "string"), "version": (2, "string"), "attributes": (3, "*KeyValue")},
    "LogRecord": {
        "time_unix_nano": (1, "fixed64"),
        "severity_number": (2, "int32"),
        "severity_text": (3, "string"),
        "body": (5, "AnyValue"),
        "attributes": (6, "*KeyValue"),
        "dropped_attributes_count": (7, "uint32"),
        "flags": (8, "fixed32"),
        "trace_id": (9, "bytes"),
        "span_id": (10, "bytes"),
        "observed_time_unix_nano": (11, "fixed64"),
        "event_name": (12, "string"),
    },
    "AnyValue": {
        "string_value": (1, "value.string"),
        "bool_value": (2, "value.bool"),
        "int_value": (3, "value.int64"),
        "double_value": (4, "value.double"),
        "array_value": (5, "value.ArrayValue"),
        "kvlist_value": (6, "value.KeyValueList"),
        "bytes_value": (7, "value.bytes"),
    },
    "ArrayValue": {"values": (1, "*AnyValue")},
    "KeyValueList": {"values": (1, "*KeyValue")},
    "KeyValue": {"key": (1, "string"), "value": (2, "AnyValue")},
    "ExportLogsServiceResponse": {"partial_success": (1, "ExportLogsPartialSuccess")},
    "ExportLogsPartialSuccess": {"rejected_log_records": (1, "int64"), "error_message": (2, "string")},
}
"""Fields by message. `*` is repeated; `value.` is one of the oneof `value`."""


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="tidemark/otlp.proto", package=PACKAGE, syntax="proto3")
    for message_name, fields in MESSAGES.items():
        message = file.message_type.add(name=message_name)
        for name, (number, kind) in fields.items():
            field = message.field.add(name=name, number=number, label=Type.LABEL_OPTIONAL)
            if kind.startswith("*"):
                kind, field.label = kind[1:], Type.LABEL_REPEATED
            elif kind.startswith("value."):
                kind, field.oneof_index = kind.removeprefix("value."), 0
            if kind in SCALARS:
                field.type = SCALARS[kind]
            else:
                field.type, field.type_name = Type.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
        if any(kind.startswith("value.") for _, kind in fields.values()):
            message.oneof_decl.add(name="value")
    return file


_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(_file())


def _message(name: str) -> Any:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))


ExportLogsServiceRequest = _message("ExportLogsServiceRequest")
ExportLogsServiceResponse = _message("ExportLogsServiceResponse")
