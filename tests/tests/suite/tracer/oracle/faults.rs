//! Texts of files without numbers that are other ones each time, and in entries of error_log with
//! identifiers in place of messages: those of the kernel are its own, ours are longer.

/// Identifiers of the kernel's messages (trace_probe.h, trace_events_filter.c, trace_events_hist.c,
/// trace_events_trigger.c of Linux 6.12).
const MESSAGES: &[(&str, &str)] = &[
    ("BAD_MAXACT_TYPE", "Maxactive is only for function exit"),
    ("BAD_MAXACT", "Invalid maxactive number"),
    ("MAXACT_TOO_BIG", "Maxactive is too big"),
    ("BAD_PROBE_ADDR", "Invalid probed address or symbol"),
    ("NON_UNIQ_SYMBOL", "The symbol is not unique"),
    ("BAD_RETPROBE", "Retprobe address must be an function entry"),
    ("BAD_ADDR_SUFFIX", "Invalid probed address suffix"),
    ("NO_GROUP_NAME", "Group name is not specified"),
    ("GROUP_TOO_LONG", "Group name is too long"),
    ("BAD_GROUP_NAME", "Group name must follow the same rules as C identifiers"),
    ("NO_EVENT_NAME", "Event name is not specified"),
    ("EVENT_TOO_LONG", "Event name is too long"),
    ("BAD_EVENT_NAME", "Event name must follow the same rules as C identifiers"),
    ("EVENT_EXIST", "Given group/event name is already used by another event"),
    ("RETVAL_ON_PROBE", "$retval is not available on probe"),
    ("NO_RETVAL", "This function returns 'void' type"),
    ("BAD_STACK_NUM", "Invalid stack number"),
    ("BAD_ARG_NUM", "Invalid argument number"),
    ("BAD_VAR", "Invalid $-variable specified"),
    ("BAD_REG_NAME", "Invalid register name"),
    ("BAD_MEM_ADDR", "Invalid memory address"),
    ("BAD_IMM", "Invalid immediate value"),
    ("IMMSTR_NO_CLOSE", "String is not closed with '\"'"),
    ("FILE_ON_KPROBE", "File offset is not available with kprobe"),
    ("BAD_FILE_OFFS", "Invalid file offset value"),
    ("TOO_MANY_OPS", "Dereference is too much nested"),
    ("DEREF_NEED_BRACE", "Dereference needs a brace"),
    ("BAD_DEREF_OFFS", "Invalid dereference offset"),
    ("DEREF_OPEN_BRACE", "Dereference brace is not closed"),
    ("COMM_CANT_DEREF", "$comm can not be dereferenced"),
    ("BAD_FETCH_ARG", "Invalid fetch argument"),
    ("ARRAY_NO_CLOSE", "Array is not closed"),
    ("BAD_ARRAY_SUFFIX", "Array has wrong suffix"),
    ("BAD_ARRAY_NUM", "Invalid array size"),
    ("ARRAY_TOO_BIG", "Array number is too big"),
    ("BAD_TYPE", "Unknown type is specified"),
    ("BAD_STRING", "String accepts only memory argument"),
    ("BAD_SYMSTRING", "Symbol String doesn't accept data/userdata"),
    ("BAD_BITFIELD", "Invalid bitfield"),
    ("ARG_NAME_TOO_LONG", "Argument name is too long"),
    ("NO_ARG_NAME", "Argument name is not specified"),
    ("BAD_ARG_NAME", "Argument name must follow the same rules as C identifiers"),
    ("USED_ARG_NAME", "This argument name is already used"),
    ("ARG_TOO_LONG", "Argument expression is too long"),
    ("NO_ARG_BODY", "No argument expression"),
    ("BAD_INSN_BNDRY", "Probe point is not an instruction boundary"),
    ("FAIL_REG_PROBE", "Failed to register probe event"),
    ("DIFF_PROBE_TYPE", "Probe type is different from existing probe"),
    ("DIFF_ARG_TYPE", "Argument type or name is different from existing probe"),
    ("SAME_PROBE", "There is already the exact same probe event"),
    ("NOSUP_BTFARG", "BTF is not available or not supported"),
    ("NO_BTFARG", "This variable is not found at this probe point"),
    ("NO_BTF_ENTRY", "No BTF entry for this probe point"),
    ("BAD_VAR_ARGS", "$arg* must be an independent parameter without name etc."),
    ("NOFENTRY_ARGS", "$arg* can be used only on function entry or exit"),
    ("DOUBLE_ARGS", "$arg* can be used only once in the parameters"),
    ("ARGS_2LONG", "$arg* failed because the argument list is too long"),
    ("ARGIDX_2BIG", "$argN index is too big"),
    ("NO_PTR_STRCT", "This is not a pointer to union/structure."),
    ("NOSUP_DAT_ARG", "Non pointer structure/union argument is not supported."),
    ("BAD_HYPHEN", "Failed to parse single hyphen. Forgot '>'?"),
    ("NO_BTF_FIELD", "This field is not found."),
    ("BAD_BTF_TID", "Failed to get BTF type info."),
    ("BAD_TYPE4STR", "This type does not fit for string."),
    ("NEED_STRING_TYPE", "$comm and immediate-string only accepts string type"),
    ("TOO_MANY_ARGS", "Too many arguments are specified"),
    ("TOO_MANY_EARGS", "Too many entry arguments specified"),
    ("EVENT_TOO_BIG", "Event too big (too many fields?)"),
    // Filters.
    ("INVALID_OP", "Invalid operator"),
    ("TOO_MANY_OPEN", "Too many '('"),
    ("TOO_MANY_CLOSE", "Too few '('"),
    ("MISSING_QUOTE", "Missing matching quote"),
    ("MISSING_BRACE_OPEN", "Missing '{'"),
    ("MISSING_BRACE_CLOSE", "Missing '}'"),
    ("OPERAND_TOO_LONG", "Operand too long"),
    ("EXPECT_STRING", "Expecting string field"),
    ("EXPECT_DIGIT", "Expecting numeric field"),
    ("ILLEGAL_FIELD_OP", "Illegal operation for field type"),
    ("FIELD_NOT_FOUND", "Field not found"),
    ("ILLEGAL_INTVAL", "Illegal integer value"),
    ("BAD_SUBSYS_FILTER", "Couldn't find or set field in one of a subsystem's events"),
    ("TOO_MANY_PREDS", "Too many terms in predicate expression"),
    ("INVALID_FILTER", "Meaningless filter expression"),
    ("INVALID_CPULIST", "Invalid cpulist"),
    ("IP_FIELD_ONLY", "Only 'ip' field is supported for function trace"),
    ("INVALID_VALUE", "Invalid value (did you forget quotes)?"),
    ("NO_FUNCTION", "Function not found"),
    ("ERRNO", "Error"),
    ("NO_FILTER", "No filter found"),
    // Histograms.
    ("FIELD_NOT_FOUND", "Couldn't find field"),
    ("TOO_MANY_VALS", "Too many hist vals"),
    ("TOO_MANY_VARS", "Too many variables defined"),
    ("MALFORMED_ASSIGNMENT", "Malformed assignment"),
    ("DUPLICATE_VAR", "Variable already defined"),
    (
        "VAR_NOT_UNIQUE",
        "Variable name not unique, need to use fully qualified name (subsys.event.var) for variable",
    ),
    ("VAR_NOT_FOUND", "Couldn't find variable"),
    ("INVALID_REF_KEY", "Using variable references in keys not supported"),
    ("INVALID_STR_OPERAND", "String type can not be an operand in expression"),
    ("TIMESTAMP_MISMATCH", "Timestamp units in expression don't match"),
    ("TOO_MANY_SUBEXPR", "Too many subexpressions (3 max)"),
    ("DIVISION_BY_ZERO", "Division by zero"),
    ("BAD_FIELD_MODIFIER", "Invalid field modifier"),
    ("TOO_MANY_SORT_FIELDS", "Too many sort fields (Max = 2)"),
    ("EMPTY_SORT_FIELD", "Empty sort field"),
    ("INVALID_SORT_FIELD", "Sort field must be a key or a val"),
    ("INVALID_SORT_MODIFIER", "Invalid sort modifier"),
    ("DUPLICATE_FIELD_NAME", "Duplicate field name"),
    ("HIST_TRIGGER_EXISTS", "Hist trigger already exists"),
    (
        "NAMED_MISMATCH",
        "Named hist trigger doesn't match existing named trigger (includes variables)",
    ),
    // Synthetic events.
    ("BAD_NAME", "Illegal name"),
    ("INVALID_CMD", "Command must be of the form: <name> field[;field] ..."),
    ("INVALID_DYN_CMD", "Command must be of the form: s or -:[synthetic/]<name> field[;field] ..."),
    ("EVENT_EXISTS", "Event already exists"),
    ("TOO_MANY_FIELDS", "Too many fields"),
    ("INCOMPLETE_TYPE", "Incomplete type"),
    ("INVALID_TYPE", "Invalid type"),
    ("INVALID_FIELD", "Invalid field"),
    ("INVALID_ARRAY_SPEC", "Invalid array specification"),
    ("PARAM_NOT_FOUND", "Couldn't find param"),
    ("SYNTH_TYPE_MISMATCH", "Param type doesn't match synthetic event field type"),
    ("SYNTH_COUNT_MISMATCH", "Param count doesn't match synthetic event field count"),
    ("ACTION_MISMATCH", "Handler doesn't support action"),
    ("SUBSYS_NOT_FOUND", "Missing subsystem"),
    ("INVALID_SUBSYS_EVENT", "Invalid subsystem or event name"),
    ("SYNTH_EVENT_NOT_FOUND", "Couldn't find synthetic event"),
    ("FIELD_VAR_PARSE_FAIL", "Couldn't parse field variable"),
    ("VAR_CREATE_FIND_FAIL", "Couldn't create or find variable"),
    ("ONX_NOT_VAR", "For onmax(x) or onchange(x), x must be a variable"),
    ("ONX_VAR_NOT_FOUND", "Couldn't find onmax or onchange variable"),
    ("FIELD_VAR_CREATE_FAIL", "Couldn't create field variable"),
    ("INVALID_PARAM", "Invalid action param"),
    ("ACTION_NOT_FOUND", "No action found"),
    ("TOO_MANY_SAVE_ACTIONS", "Can't have more than one save() action per hist"),
    ("NO_CLOSING_PAREN", "No closing paren found"),
    ("EMPTY_ASSIGNMENT", "Empty assignment"),
    ("EXPECT_NUMBER", "Expecting numeric literal"),
    ("UNARY_MINUS_SUBEXPR", "Unary minus not supported in sub-expressions"),
    ("HIST_CREATE_FAIL", "Couldn't create histogram for field"),
    ("EVENT_FILE_NOT_FOUND", "Event file not found"),
    ("HIST_NOT_FOUND", "Matching event histogram not found"),
    ("TRIGGER_EEXIST", "Trigger already exists"),
    ("TRIGGER_ENOENT_CLEAR", "Can't clear or continue a nonexistent hist trigger"),
    ("NEED_NOHC_VAL", "Non-hitcount value is required for 'nohitcount'"),
];

/// Identifiers of the kernel's faults of filters, but `IP_FIELD_ONLY`, which is for functions.
pub(super) fn of_filters() -> impl Iterator<Item = &'static str> {
    let filters = MESSAGES.iter().skip_while(|(id, _)| *id != "INVALID_OP");
    let ids = filters.map(|(id, _)| *id).filter(|id| *id != "IP_FIELD_ONLY");
    ids.take_while(|id| *id != "TOO_MANY_VALS")
}

/// The text of the file with the kernel's identifiers.
pub(super) fn of_kernel(log: &str) -> String {
    let id = |message: &str| {
        let found = MESSAGES.iter().find(|(_, text)| *text == message);
        found.map_or_else(|| message.to_owned(), |(id, _)| (*id).to_owned())
    };
    entries(log, id)
}

/// The text of our file with the identifiers of these faults, in their order. Messages that begin
/// as the kernel's have its identifiers, also those of faults that no write returns.
pub(super) fn of_ours(log: &str, ids: &[&str]) -> String {
    let mut ids = ids.iter().peekable();
    entries(log, |message| {
        let begin = message.split(": ").next();
        let known = MESSAGES.iter().find(|(_, text)| Some(*text) == begin).map(|(id, _)| *id);
        let id = match known {
            Some(known) => ids.next_if(|id| **id == known).map_or(known, |id| *id),
            None => ids.next().map_or(message, |id| *id),
        };
        id.to_owned()
    })
}

fn entries(log: &str, mut id: impl FnMut(&str) -> String) -> String {
    let line = |line: &str| {
        let entry = line.strip_prefix('[').and_then(|line| line.split_once("] "));
        match entry.and_then(|(_, entry)| entry.split_once(": error: ")) {
            Some((part, message)) => format!("{part}: {}", id(message)),
            // The event's number.
            None if line.starts_with("ID: ") => "ID: #".to_owned(),
            None => line.to_owned(),
        }
    };
    let lines: Vec<String> = log.trim_end().lines().map(line).collect();
    lines.join("\n")
}
