#!/usr/bin/env python3
"""Cuts what `exoprobe export` writes out of Perfetto's published schema.

    pip install perfetto==0.59.1 && ./perfetto-schema.py > perfetto-trace.textproto

Fields of other messages are left out: in a trace that has one, they are unknown, and the test fails.
"""

from google.protobuf import descriptor_pb2, text_format
from perfetto.protos.perfetto.trace import perfetto_trace_pb2

HEADER = """\
# What `exoprobe export` writes of Perfetto's traces, as a google.protobuf.FileDescriptorSet. Cut by perfetto-schema.py
# out of the descriptors in the package perfetto 0.59.1 of pypi.org.
#
# Copyright (C) The Android Open Source Project
#
# Licensed under the Apache License, Version 2.0 (the "License"); you may not use this file except in compliance with the
# License. You may obtain a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software distributed under the License is distributed on an
# "AS IS" BASIS, WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the License for the specific
# language governing permissions and limitations under the License.
"""
PACKAGE = "perfetto.protos"
KEPT = [
    "Trace",
    "TracePacket",
    "TrackDescriptor",
    "TrackEvent",
    "TrackEvent.InlineCallstack",
    "TrackEvent.InlineCallstack.Frame",
    "DebugAnnotation",
]
Field = descriptor_pb2.FieldDescriptorProto


def cut(message, name):
    """Removes from a message, and those in it, what leads to others."""
    enums = {f".{PACKAGE}.{name}.{enum.name}" for enum in message.enum_type}
    kept = [
        field
        for field in message.field
        if field.type not in (Field.TYPE_MESSAGE, Field.TYPE_GROUP, Field.TYPE_ENUM)
        or field.type_name.removeprefix(f".{PACKAGE}.") in KEPT
        or field.type_name in enums
    ]
    used = sorted({field.oneof_index for field in kept if field.HasField("oneof_index")})
    oneofs = [message.oneof_decl[index] for index in used]
    for field in kept:
        field.ClearField("options")
        if field.HasField("oneof_index"):
            field.oneof_index = used.index(field.oneof_index)
    nested = [inner for inner in message.nested_type if f"{name}.{inner.name}" in KEPT]
    for inner in nested:
        cut(inner, f"{name}.{inner.name}")
    for member, values in [("field", kept), ("oneof_decl", oneofs), ("nested_type", nested)]:
        values = [type(value).FromString(value.SerializeToString()) for value in values]
        message.ClearField(member)
        getattr(message, member).extend(values)
    for member in ("extension", "extension_range", "options", "reserved_range", "reserved_name"):
        message.ClearField(member)


def main():
    whole = descriptor_pb2.FileDescriptorProto()
    perfetto_trace_pb2.DESCRIPTOR.CopyToProto(whole)
    kept = descriptor_pb2.FileDescriptorSet()
    file = kept.file.add(name=whole.name, package=whole.package, syntax="proto2")
    for message in whole.message_type:
        if message.name in KEPT:
            cut(message, message.name)
            file.message_type.append(message)
    print(HEADER + text_format.MessageToString(kept), end="")


main()
