//! `exoprobe types`.

use clap::Args;
use serde::Deserialize;

use super::context::Context;
use super::error::CliError;
use super::format::{Column, printable_lines, table};
use crate::client::ApiPath;
use crate::log::say;

const EXAMPLES: &str = "\
Examples:
  exoprobe types task_struct
  exoprobe types 'struct file'
  exoprobe types do_sys_openat2
  exoprobe types 'task_*' --limit 20";

/// Arguments of `types`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct TypesArgs {
    /// A struct, union, enum, typedef or function; or a pattern of names of types: `*` stands for any run of
    /// characters, `?` for any one
    #[arg(value_name = "NAME")]
    name: String,
    /// Most types to list, 10000 at most
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: usize,
}

#[derive(Deserialize)]
struct TypeName {
    name: String,
    kind: String,
    size: Option<u64>,
}

#[derive(Deserialize)]
struct Type {
    declaration: String,
    size: Option<u64>,
    members: Vec<Member>,
    values: Vec<Value>,
}

#[derive(Deserialize)]
struct Member {
    declaration: String,
    offset: u64,
    size: u64,
    bits: Option<u32>,
    bit_offset: Option<u32>,
    #[serde(default)]
    members: Vec<Member>,
}

#[derive(Deserialize)]
struct Value {
    name: String,
    value: serde_json::Number,
}

/// Shows a type, or lists several.
pub(super) async fn run(context: &mut Context<'_>, args: &TypesArgs) -> Result<(), CliError> {
    if args.name.contains(['*', '?']) {
        return list(context, args).await;
    }
    let answer = context.client.get(&ApiPath::new(&["types", &args.name])).await?;
    let Some(found) = context.read::<Type>(&answer)? else { return Ok(()) };
    Ok(write!(context.out, "{}", printable_lines(&text(&found)))?)
}

async fn list(context: &mut Context<'_>, args: &TypesArgs) -> Result<(), CliError> {
    let path = ApiPath::new(&["types"]).query("name", &args.name).query("limit", args.limit);
    let answer = context.client.get(&path).await?;
    let Some(types) = context.read::<Vec<TypeName>>(&answer)? else { return Ok(()) };
    let is_full = types.len() == args.limit;
    let columns = [Column::Text("KIND"), Column::Number("SIZE"), Column::Text("NAME")];
    let rows = types.into_iter().map(|found| {
        let size = found.size.map_or("-".to_owned(), |size| size.to_string());
        vec![found.kind, size, found.name]
    });
    writeln!(context.out, "{}", table(&columns, rows))?;
    if is_full {
        say!("there may be more: give --limit");
    }
    Ok(())
}

/// A declaration with its members and their places, as pahole shows them: offset, size in bytes.
fn text(found: &Type) -> String {
    let mut text = String::new();
    if found.members.is_empty() && found.values.is_empty() {
        text.push_str(&format!("{};\n", found.declaration));
    } else {
        text.push_str(&format!("{} {{\n", found.declaration));
        members(&found.members, 1, &mut text);
        for Value { name, value } in &found.values {
            text.push_str(&format!("    {name} = {value},\n"));
        }
        text.push_str("};\n");
    }
    if let Some(size) = found.size {
        text.push_str(&format!("/* size: {size} */\n"));
    }
    text
}

fn members(members_of: &[Member], depth: usize, text: &mut String) {
    let indent = "    ".repeat(depth);
    for member in members_of {
        let place = match (member.bits, member.bit_offset) {
            (Some(_), Some(before)) => {
                format!("{:>5}:{before:<2} {:>5}", member.offset, member.size)
            }
            _ => format!("{:>5}    {:>5}", member.offset, member.size),
        };
        let width = member.bits.map_or(String::new(), |bits| format!(":{bits}"));
        if member.members.is_empty() {
            let line = format!("{indent}{}{width};", member.declaration);
            text.push_str(&format!("{line:<52} /* {place} */\n"));
            continue;
        }
        let (tag, name) = member.declaration.split_once("{...}").unwrap_or_default();
        text.push_str(&format!("{indent}{tag}{{\n"));
        members(&member.members, depth + 1, text);
        let line = format!("{indent}}}{name};");
        text.push_str(&format!("{line:<52} /* {place} */\n"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_struct_is_shown_with_its_members_places() {
        let found = json!({"kind": "struct", "declaration": "struct s", "size": 16, "values": [], "members": [
            {"name": "a", "declaration": "int a", "offset": 0, "size": 4},
            {"name": "f", "declaration": "unsigned int f", "offset": 4, "size": 4, "bits": 3, "bit_offset": 1},
            {"name": null, "declaration": "union {...}", "offset": 8, "size": 8, "members": [
                {"name": "b", "declaration": "char *b", "offset": 8, "size": 8}]}]});
        let shown = text(&serde_json::from_value(found).unwrap());
        let lines: Vec<String> = shown
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        let expected = [
            "struct s {",
            "int a; /* 0 4 */",
            "unsigned int f:3; /* 4:1 4 */",
            "union {",
            "char *b; /* 8 8 */",
            "}; /* 8 8 */",
            "};",
            "/* size: 16 */",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn enums_and_functions_are_shown_too() {
        let of = |json| text(&serde_json::from_value(json).unwrap());
        let an_enum = json!({"kind": "enum", "declaration": "enum e", "size": 4, "members": [],
            "values": [{"name": "A", "value": -1}]});
        assert_eq!(of(an_enum), "enum e {\n    A = -1,\n};\n/* size: 4 */\n");
        let function = json!({"kind": "function", "declaration": "int f(int a)", "size": null,
            "members": [], "values": []});
        assert_eq!(of(function), "int f(int a);\n");
    }
}
