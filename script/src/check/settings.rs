//! The `config` block, and enums of the script.

use std::sync::Arc;

use super::checker::Checker;
use crate::diagnostic::Diagnostic;
use crate::syntax::ast::{EnumDef, Expr, ExprKind, Name};
use crate::types::StackMode;

/// Settings that change nothing here: they are about BPF or about the terminal.
const WITHOUT_EFFECT: [&str; 14] = [
    "cache_user_symbols",
    "cpp_demangle",
    "lazy_symbolication",
    "license",
    "log_size",
    "max_bpf_progs",
    "max_cat_bytes",
    "max_probes",
    "missing_probes",
    "on_stack_limit",
    "perf_rb_pages",
    "show_debug_info",
    "use_blazesym",
    "str_trunc_trailer",
];

/// Longest text that `max_strlen` may name.
const TEXT_MAX: u32 = 1 << 16;

impl Checker<'_> {
    /// Takes the settings of the `config` block.
    pub(super) fn configure(&mut self) {
        for (name, value) in &self.script.tree.config {
            if let Err(error) = self.configure_one(name, value) {
                self.errors.push(error);
            }
        }
    }

    fn configure_one(&mut self, name: &Name, value: &Expr) -> Result<(), Diagnostic> {
        let lower = name.text.to_lowercase();
        let setting = lower.strip_prefix("bpftrace_").unwrap_or(&lower);
        let word = match &value.kind {
            ExprKind::Ident(word) => Some(&**word),
            _ => None,
        };
        let number = match value.kind {
            ExprKind::Int(number, _) => u32::try_from(number).ok(),
            _ => None,
        };
        let wrong =
            |help: &str| Err(Diagnostic::new(value.span, "not a value of this setting").help(help));
        match (setting, word, number) {
            ("max_strlen", _, Some(number @ 1..=TEXT_MAX)) => self.options.text_max = number,
            ("max_strlen", ..) => return wrong("write 1 to 65536"),
            ("stack_mode", Some(word), _) => match stack_mode(word) {
                Some(mode) => self.options.stack_mode = mode,
                None => return wrong("write bpftrace, perf or raw"),
            },
            ("stack_mode", ..) => return wrong("write bpftrace, perf or raw"),
            ("max_map_keys", _, Some(number @ 1..)) => self.map_entries = Some(number),
            ("max_map_keys", ..) => return wrong("write a number from 1 on"),
            ("print_maps_on_exit", Some(word @ ("true" | "false")), _) => {
                self.print_maps = word == "true";
            }
            ("print_maps_on_exit", _, Some(number)) => self.print_maps = number != 0,
            ("print_maps_on_exit", ..) => return wrong("write true or false"),
            (setting, ..) if WITHOUT_EFFECT.contains(&setting) => {}
            (setting, ..) if setting.starts_with("unstable_") => {}
            _ => {
                let error = Diagnostic::new(name.span, format!("unknown setting `{}`", name.text));
                let known = ["max_strlen", "stack_mode", "max_map_keys", "print_maps_on_exit"];
                return Err(error.near(setting, known.into_iter().chain(WITHOUT_EFFECT)));
            }
        }
        Ok(())
    }

    /// Takes the names of the script's enums, which its structs may use.
    pub(super) fn name_enums(&mut self) {
        for (index, definition) in self.script.tree.enums.iter().enumerate() {
            self.own.enums.insert(enum_name(definition, index), Vec::new());
        }
    }

    /// Takes the constants of the script's enums. A value may name constants before it.
    pub(super) fn define_enums(&mut self) {
        for (index, definition) in self.script.tree.enums.iter().enumerate() {
            let key = enum_name(definition, index);
            let mut next = 0i64;
            for (name, value) in &definition.values {
                if let Some(expr) = value {
                    let known = self.expr(expr).ok().and_then(|operand| operand.constant());
                    match known {
                        Some(value) => next = value,
                        None => {
                            let message = "the value of an enum's constant is a number";
                            self.errors.push(Diagnostic::new(expr.span, message));
                        }
                    }
                }
                self.own.add_constant(&key, &name.text, next);
                next = next.wrapping_add(1);
            }
        }
    }
}

/// The name of an enum; of one without a name, one that no script can write.
fn enum_name(definition: &EnumDef, index: usize) -> Arc<str> {
    match &*definition.name.text {
        "" => format!("(unnamed {index})").into(),
        _ => Arc::clone(&definition.name.text),
    }
}

pub(super) fn stack_mode(word: &str) -> Option<StackMode> {
    match word {
        "bpftrace" => Some(StackMode::Bpftrace),
        "perf" => Some(StackMode::Perf),
        "raw" => Some(StackMode::Raw),
        _ => None,
    }
}
