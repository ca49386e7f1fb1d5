"""Protobuf schemas: text and descriptor say the same, and their canonical text can be read again."""

from __future__ import annotations

import base64
import os
import tempfile
import time
from pathlib import Path

import pytest
from confluent_kafka.schema_registry.confluent import meta_pb2
from confluent_kafka.schema_registry.confluent.type import decimal_pb2, variant_pb2
from confluent_kafka.schema_registry.confluent.types import decimal_pb2 as old_decimal_pb2
from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.descriptor_pool import DescriptorPool

from views.formats.protobuf_schema import protobuf_reader
from views.schemas import PROTOBUF, InvalidSchema, NamedSchema, ProtobufSchema, incompatibilities, parse, protoc
from views.schemas.protobuf_text import to_text

pytestmark = pytest.mark.process  # protoc is a process

ORDER = """
// Comments are lost.
syntax = "proto3";
package shop;
import "shop/item.proto";
import public "google/protobuf/timestamp.proto";
option java_package = "com.shop";
option (owner) = { team: "order \\"desk\\"" tags: "a" tags: "b" };

import "google/protobuf/descriptor.proto";
message Owner { string team = 1; repeated string tags = 2; }
extend google.protobuf.FileOptions { Owner owner = 50001; }

message Order {
  message Inner { reserved 4, 9 to 11, 1000 to max; reserved "old"; optional int32 a = 1; }
  map<string, Item> items = 2 [deprecated = true];
  string order_id = 1 [json_name = "ID"];
  message Later {}
  repeated Inner inners = 3 ;
  oneof how { string card = 8; .shop.Order.Inner cash = 7; }
  enum State { option allow_alias = true; NEW = 0; OPEN = 0; PAID = 5 [deprecated = true, (note) = "x"]; }
  State state = 4;
  google.protobuf.Timestamp at = 5;
}
extend google.protobuf.EnumValueOptions { string note = 50002; }
service Orders { rpc Put (stream Order) returns (Item); }
"""
ITEM = NamedSchema("shop/item.proto", 'syntax = "proto3"; package shop; message Item { int32 n = 1; }')
ORDER_TEXT = """syntax = "proto3";
package shop;

import "shop/item.proto";
import "google/protobuf/descriptor.proto";
import public "google/protobuf/timestamp.proto";

option java_package = "com.shop";
option (shop.owner) = { team: "order \\"desk\\"" tags: "a" tags: "b" };

message Owner {
  string team = 1;
  repeated string tags = 2;
}
message Order {
  message Inner {
    reserved 4, 9 to 11, 1000 to max;
    reserved "old";

    optional int32 a = 1;
  }
  map<string, .shop.Item> items = 2 [deprecated = true];
  string order_id = 1 [json_name = "ID"];
  repeated .shop.Order.Inner inners = 3;
  .shop.Order.State state = 4;
  .google.protobuf.Timestamp at = 5;

  oneof how {
    string card = 8;
    .shop.Order.Inner cash = 7;
  }

  message Later {}
  enum State {
    option allow_alias = true;
    NEW = 0;
    OPEN = 0;
    PAID = 5 [
      deprecated = true,
      (shop.note) = "x"
    ];
  }
}

extend .google.protobuf.FileOptions {
  .shop.Owner owner = 50001;
}
extend .google.protobuf.EnumValueOptions {
  string note = 50002;
}

service Orders {
  rpc Put (stream .shop.Order) returns (.shop.Item);
}
"""
PROTO2 = """syntax = "proto2";
package old;

message M {
  extensions 100 to 199;
  required string name = 1 [default = "a\\"b\\n"];
  optional bytes raw = 2 [default = "\\001\\377"];
  optional double ratio = 3 [default = inf];
  optional E e = 4 [default = B];
  repeated group Line = 5 { optional int32 quantity = 1; }
  repeated int32 packed = 6 [packed = true];
}
enum E { A = 1; B = -2; }
extend M { optional M.Line more = 100; }
"""
EDITION = """edition = "2023";
package new;
option features.field_presence = IMPLICIT;
message M {
  reserved gone;
  int32 a = 1 [features.field_presence = LEGACY_REQUIRED];
  M inner = 2 [features.message_encoding = DELIMITED];
}
"""
CASES = {"proto3": (ORDER, [ITEM]), "proto2": (PROTO2, []), "edition": (EDITION, []), "empty": ("", [])}


def test_protobuf_text_is_in_order_of_kinds_with_full_names() -> None:
    assert parse(PROTOBUF, ORDER, [ITEM]).canonical == ORDER_TEXT


@pytest.mark.parametrize("case", CASES)
def test_protobuf_text_and_descriptor_are_one_schema(case: str) -> None:
    text, references = CASES[case]
    schema = parse(PROTOBUF, text, references)
    assert isinstance(schema, ProtobufSchema)
    again = parse(PROTOBUF, schema.canonical, references)
    sent = parse(PROTOBUF, schema.formatted("serialized"), references)
    for other in (again, sent):
        assert isinstance(other, ProtobufSchema)
        assert other.canonical == schema.canonical
        assert other.normalized == schema.normalized
        assert incompatibilities(schema, other) == incompatibilities(other, schema) == []
        # Messages and their nested messages keep their order, which the indexes in Confluent's framing count.
        for mine, its in zip(schema.file.message_type, other.file.message_type, strict=True):
            assert [nested.name for nested in mine.nested_type] == [nested.name for nested in its.nested_type]
    assert parse(PROTOBUF, schema.normalized, references).normalized == schema.normalized


def test_protobuf_descriptor_of_a_generated_class_is_the_schema_of_its_text() -> None:
    schema = parse(PROTOBUF, ORDER, [ITEM])
    assert isinstance(schema, ProtobufSchema)
    pool = DescriptorPool()
    for file in schema.file_set.file:
        pool.AddSerializedFile(file.SerializeToString())
    sent = descriptor_pb2.FileDescriptorProto()
    message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order")).DESCRIPTOR.file.CopyToProto(sent)
    sent.name = "orders/generated.proto"
    assert parse(PROTOBUF, base64.b64encode(sent.SerializeToString()).decode(), [ITEM]).canonical == ORDER_TEXT


def test_protobuf_normalized_text_does_not_depend_on_order() -> None:
    head = 'syntax = "proto3"; enum E { A = 0; '
    one = head + 'C = 2; B = 1; } message M { reserved "b", "a"; int32 y = 2; int32 x = 1 [deprecated = true]; }'
    other = (
        head + 'B = 1; C = 2; } message M { int32 x = 1 [deprecated = true]; int32 y = 2; reserved "a"; reserved "b"; }'
    )
    assert parse(PROTOBUF, one).canonical != parse(PROTOBUF, other).canonical
    assert parse(PROTOBUF, one).normalized == parse(PROTOBUF, other).normalized


@pytest.mark.parametrize(
    ("text", "references", "message"),
    [
        ("message M { int32 a = 1; }", [], "PROTOBUF schema, line 1, column 13: Expected .*optional"),
        ('syntax = "proto3"; message M { X x = 1; }', [], '"X" is not defined'),
        ('syntax = "proto3"; import "shop/item.proto";', [], r"shop/item\.proto.*: File not found.*add a reference"),
        ('syntax = "proto3"; import "/etc/hostname";', [], "File not found|is not"),
        ('syntax = "proto3"; import "../../etc/hostname";', [], "must not|File not found|not allowed"),
        ('syntax = "proto3";', [NamedSchema("../a.proto", "")], r"has the name '\.\./a\.proto'"),
        ('syntax = "proto3";', [NamedSchema("/a.proto", "")], "has the name '/a.proto'"),
        ('syntax = "proto3";', [NamedSchema("-I.proto\n", "")], "has the name"),
        ('syntax = "proto3";', [NamedSchema("schema.proto", "")], "has the name 'schema.proto'"),
        ('syntax = "proto3";', [NamedSchema("a", ""), NamedSchema("a/b", "")], "no name that a file could have"),
        (
            'syntax = "proto3"; import "a.proto";',
            [NamedSchema("a.proto", "import 7;")],
            r"'a\.proto', line 1, column 8",
        ),
        ('syntax = "proto3"; import "google/api/http.proto";', [], r"google/api/http\.proto.*: File not found"),
        ("message M {" * 200, [], "PROTOBUF schema"),
        ("AAAA", [], "PROTOBUF schema"),
        ("x" * 1_000_001, [], "1000000 is the most"),
    ],
)
def test_protobuf_that_is_no_schema_is_refused(text: str, references: list[NamedSchema], message: str) -> None:
    with pytest.raises(InvalidSchema, match=message) as refused:
        parse(PROTOBUF, text, references)
    assert "/tmp" not in str(refused.value)  # noqa: S108 - looked for, not used


def test_protobuf_descriptor_with_names_that_are_text_is_refused() -> None:
    file = descriptor_pb2.FileDescriptorProto(syntax="proto3")
    file.message_type.add(name='M {} option java_package = "x"; message N')
    with pytest.raises(InvalidSchema, match="PROTOBUF schema"):
        parse(PROTOBUF, base64.b64encode(file.SerializeToString()).decode())


def test_protobuf_that_begins_like_a_descriptor_is_refused_at_once() -> None:
    """Found out by going back, for each space, over all before: hours."""
    with pytest.raises(InvalidSchema, match="PROTOBUF schema"):
        parse(PROTOBUF, "A" + " " * 900_000 + "!")


def test_protobuf_descriptor_may_be_written_on_several_lines() -> None:
    schema = parse(PROTOBUF, PROTO2)
    lines = base64.encodebytes(base64.b64decode(schema.formatted("serialized"))).decode()
    assert lines.count("\n") > 2
    assert parse(PROTOBUF, lines).canonical == schema.canonical


def test_protobuf_text_of_many_nested_messages_is_written_in_order() -> None:
    """Each map has a message in front of it: looking for each from the beginning would take days."""
    many = 10_000
    file = descriptor_pb2.FileDescriptorProto(syntax="proto3")
    message = file.message_type.add(name="M")
    for number in range(many):
        message.nested_type.add(name=f"N{number}")
    for number in range(many):
        entry = message.nested_type.add(name=f"F{number}Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, type=9, label=1)
        entry.field.add(name="value", number=2, type=9, label=1)
        message.field.add(name=f"f{number}", number=number + 1, type=11, label=3, type_name=f".M.F{number}Entry")
        message.nested_type.add(name=f"L{number}")
    lines = to_text(file).split("\n")
    assert lines.index("  message N0 {}") < lines.index(f"  message N{many - 1} {{}}")
    assert lines.index("  map<string, string> f1 = 2;") == lines.index("  message L0 {}") + 1
    assert lines[-4:] == ["", f"  message L{many - 1} {{}}", "}", ""]


def test_protobuf_text_of_many_messages_is_written() -> None:
    """A list of all messages for each of them would be five billion entries."""
    file = descriptor_pb2.FileDescriptorProto(syntax="proto3")
    for number in range(70_000):
        file.message_type.add(name=f"M{number}")
    assert to_text(file).count("message M") == 70_000


def test_googles_common_types_need_no_reference() -> None:
    text = 'syntax = "proto3"; import "google/type/money.proto"; message M { google.type.Money price = 1; }'
    schema = parse(PROTOBUF, text)
    assert isinstance(schema, ProtobufSchema)
    assert [file.name for file in schema.file_set.file] == ["google/type/money.proto", protoc.ROOT]
    assert parse(PROTOBUF, schema.formatted("serialized")).canonical == schema.canonical
    (price,) = protobuf_reader(text).fields
    assert [field.name for field in price.type.fields] == ["currency_code", "units", "nanos"]
    own = 'syntax = "proto3"; package google.type; message Money { string all = 1; }'
    with_own = parse(PROTOBUF, text, [NamedSchema("google/type/money.proto", own)])
    assert isinstance(with_own, ProtobufSchema)
    assert with_own.file_set.file[0].message_type[0].field[0].name == "all"


CONFLUENTS = {
    "meta": meta_pb2,
    "type/decimal": decimal_pb2,
    "type/variant": variant_pb2,
    "types/decimal": old_decimal_pb2,
}


@pytest.mark.parametrize("path", CONFLUENTS)
def test_what_confluents_serializer_brings_is_bundled(path: str) -> None:
    schema = parse(PROTOBUF, f'syntax = "proto3"; import "confluent/{path}.proto";')
    assert isinstance(schema, ProtobufSchema)
    theirs = descriptor_pb2.FileDescriptorProto.FromString(CONFLUENTS[path].DESCRIPTOR.serialized_pb)
    theirs.ClearField("options")  # where Go finds it
    (ours,) = (file for file in schema.file_set.file if file.name == theirs.name)
    assert to_text(ours) == to_text(theirs)


def test_tags_of_a_field_are_kept() -> None:
    text = """syntax = "proto3"; import "confluent/meta.proto"; import "confluent/type/decimal.proto"; message M {
        string name = 1 [(confluent.field_meta) = {doc: "whose", tags: ["PII"]}];
        confluent.type.Decimal price = 2;
    }"""
    schema = parse(PROTOBUF, text)
    assert '"PII"' in schema.canonical
    assert parse(PROTOBUF, schema.canonical).canonical == schema.canonical
    assert parse(PROTOBUF, schema.formatted("serialized")).canonical == schema.canonical
    assert [field.name for field in protobuf_reader(text).fields] == ["name", "price"]


def test_folders_that_killed_processes_left_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, used, other = tmp_path / f"{protoc.FOLDER}left", tmp_path / f"{protoc.FOLDER}used", tmp_path / "other"
    for folder in (left, used, other):
        folder.mkdir()
        (folder / "schema.proto").touch()
    for folder in (left, other):
        old = time.time() - 2 * protoc.LEFT_BEHIND_S
        os.utime(folder, (old, old))
    protoc.remove_leftovers.__wrapped__()
    assert {each.name for each in tmp_path.iterdir()} == {used.name, other.name}
