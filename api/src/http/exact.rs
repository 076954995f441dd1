//! Parts of the OpenAPI document that are not derived and that all routes share.

use serde_json::{Map, Value, json};
use utoipa::Modify;
use utoipa::openapi::path::Operation;
use utoipa::openapi::{OpenApi, RefOr};

use super::answers::problem;

/// Bounds of integers by their format; without one it is a 64-bit number.
const BOUNDS: [(&str, i64, u64); 7] = [
    ("uint8", 0, u8::MAX as u64),
    ("uint16", 0, u16::MAX as u64),
    ("uint32", 0, u32::MAX as u64),
    ("uint64", 0, u64::MAX),
    ("int32", i32::MIN as i64, i32::MAX.unsigned_abs() as u64),
    ("int64", i64::MIN, i64::MAX.unsigned_abs()),
    ("", 0, u64::MAX),
];

/// Adds the statuses of parameters and bodies that cannot be read.
pub(super) struct UnreadableRequests;

impl Modify for UnreadableRequests {
    fn modify(&self, document: &mut OpenApi) {
        for item in document.paths.paths.values_mut() {
            let operations =
                [&mut item.get, &mut item.put, &mut item.post, &mut item.patch, &mut item.delete];
            operations.into_iter().flatten().for_each(add_statuses);
        }
    }
}

fn add_statuses(operation: &mut Operation) {
    let mut found = Vec::new();
    if operation.parameters.is_some() || operation.request_body.is_some() {
        found.push(problem("400", "The request is not as this document says"));
    }
    if let Some(RefOr::T(body)) = &operation.request_body {
        found.push(problem("408", "The body did not come in time"));
        found.push(problem("413", "The body is too large"));
        if body.content.contains_key("application/json") {
            found.push(problem("415", "The body is of another content type"));
        }
    }
    operation.responses.responses.extend(found);
}

/// Bounds every integer by its format, and takes `null` from parameters: none can be that.
pub(super) fn make_exact(document: &mut Value) {
    bound(document);
    let paths = document["paths"].as_object_mut().into_iter().flat_map(Map::values_mut);
    let operations = paths.filter_map(Value::as_object_mut).flat_map(Map::values_mut);
    for parameter in
        operations.filter_map(|operation| operation.get_mut("parameters")?.as_array_mut()).flatten()
    {
        if let Some(Value::Array(types)) = parameter.pointer_mut("/schema/type") {
            types.retain(|name| name != "null");
            parameter["schema"]["type"] = types[0].take();
        }
    }
    let schemas = &mut document["components"]["schemas"];
    choose_place(&mut schemas["ProbeRequest"]);
    // utoipa has no words for these in an enum's variants.
    schemas["ProbeRequests"]["oneOf"][1]["minItems"] = json!(1);
    schemas["Number"]["oneOf"][0]["maximum"] = json!(u64::MAX);
    schemas["Width"]["enum"] = json!([1, 2, 4, 8]);
    close(&mut schemas["Action"]);
}

fn bound(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(bound),
        Value::Object(fields) => {
            bound_integer(fields);
            fields.values_mut().for_each(bound);
        }
        _ => {}
    }
}

/// Says of all objects in a schema that they have no other fields.
fn close(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(close),
        Value::Object(fields) => {
            if fields.contains_key("properties") {
                fields.insert("additionalProperties".to_owned(), json!(false));
            }
            fields.values_mut().for_each(close);
        }
        _ => {}
    }
}

fn bound_integer(schema: &mut Map<String, Value>) {
    let is_integer = match schema.get("type") {
        Some(Value::Array(types)) => types.iter().any(|name| name == "integer"),
        Some(name) => name == "integer",
        None => false,
    };
    let format = schema.get("format").and_then(Value::as_str).unwrap_or_default();
    // As utoipa writes `uint64`.
    let format = format.replace("u-int", "uint");
    let Some((_, least, most)) = BOUNDS.iter().find(|(name, ..)| *name == format) else { return };
    if is_integer {
        if !format.is_empty() {
            schema.insert("format".to_owned(), json!(format));
        }
        schema.entry("minimum").or_insert(json!(least));
        schema.entry("maximum").or_insert(json!(most));
    }
}

/// A probe has exactly one of `symbol_name` and `addr`; the other may be null.
fn choose_place(request: &mut Value) {
    let one_of = |given: &str, absent: &str| {
        json!({"required": [given], "properties": {
            given: {"not": {"type": "null"}}, absent: {"type": "null"},
        }})
    };
    request["oneOf"] = json!([one_of("symbol_name", "addr"), one_of("addr", "symbol_name")]);
}
