//! The names and types that a probe's action can use, as text: for `trace -lv`.

use exoprobe_introspect::btf::{Btf, Kind};
use exoprobe_script::{AttachmentKind, RecordRef, Type};

use super::syscalls;

/// Of the tracepoints of all system calls.
const ID: &str = "long id";
/// Of those of one.
const NUMBER: &str = "int __syscall_nr";

/// The arguments of a probe, each as `TYPE NAME`, as bpftrace lists them: of a function by the
/// kernel's types (none where these do not describe it), of a system call by its tracepoint's
/// format, with plain numbers in place of its type names.
pub(super) fn parameters(kind: &AttachmentKind, types: Option<&Btf>) -> Vec<String> {
    use AttachmentKind as Call;
    match kind {
        Call::Kprobe { symbol, offset: 0, .. } | Call::Fentry { symbol } => {
            types.and_then(|types| arguments(types, symbol)).unwrap_or_default()
        }
        Call::Kretprobe { symbol, .. } => {
            types.and_then(|types| result(types, symbol)).into_iter().collect()
        }
        Call::Fexit { symbol } => {
            let arguments = types.and_then(|types| arguments(types, symbol)).unwrap_or_default();
            let result = types.and_then(|types| result(types, symbol));
            arguments.into_iter().chain(result).collect()
        }
        Call::SyscallEnter { name: Some(name) } => {
            let fields = syscalls::parameters(name).unwrap_or_default().into_iter();
            let fields = fields.map(|field| format!("{} {}", c_type(&field.ty), field.name));
            std::iter::once(NUMBER.to_owned()).chain(fields).collect()
        }
        Call::SyscallExit { name: Some(_) } => vec![NUMBER.to_owned(), "long ret".to_owned()],
        Call::SyscallEnter { name: None } => {
            vec![ID.to_owned(), "unsigned long args[6]".to_owned()]
        }
        Call::SyscallExit { name: None } => vec![ID.to_owned(), "long ret".to_owned()],
        Call::Kprobe { .. }
        | Call::Begin
        | Call::End
        | Call::Interval { .. }
        | Call::Profile { .. } => Vec::new(),
    }
}

fn arguments(types: &Btf, function: &str) -> Option<Vec<String>> {
    let parameters = types.parameters(types.function(function)?).into_iter();
    let shown = parameters.map(|it| format!("{} {}", types.declaration(it.id, ""), it.name));
    Some(shown.collect())
}

fn result(types: &Btf, function: &str) -> Option<String> {
    let Kind::Prototype(prototype) = types.kind(types.function(function)?) else { return None };
    match types.declaration(prototype.result, "").as_str() {
        "void" => None,
        result => Some(format!("{result} retval")),
    }
}

/// A field's type, as C writes it.
fn c_type(ty: &Type) -> String {
    match ty {
        Type::Integer { bytes, signed } => {
            let word = match bytes {
                1 => "char",
                2 => "short",
                4 => "int",
                _ => "long",
            };
            format!("{}{word}", if *signed { "" } else { "unsigned " })
        }
        Type::Pointer(to) => format!("{} *", c_type(to)),
        Type::Record(RecordRef::Named(name)) => format!("struct {name}"),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_calls_have_the_fields_of_their_tracepoints() {
        let of = |name: Option<&str>, enter: bool| {
            let name = name.map(Into::into);
            let kind = match enter {
                true => AttachmentKind::SyscallEnter { name },
                false => AttachmentKind::SyscallExit { name },
            };
            parameters(&kind, None).join(", ")
        };
        assert_eq!(
            of(Some("openat"), true),
            "int __syscall_nr, int dfd, char * filename, int flags, unsigned short mode"
        );
        assert_eq!(of(Some("openat"), false), "int __syscall_nr, long ret");
        assert_eq!(of(None, true), "long id, unsigned long args[6]");
        assert_eq!(of(None, false), "long id, long ret");
        let function = AttachmentKind::Fentry { symbol: "vfs_read".into() };
        assert_eq!(parameters(&function, None), [] as [&str; 0], "no types, no arguments");
    }
}
