//! Modules that come and go.

mod optimized;

use crate::Selection;
use exoprobe_introspect::modules::ModuleState;
use exoprobe_introspect::modules::sample::{self, Form, SampleModule};

use super::*;

const HEAD: u64 = 0xffff_ffff_8112_0000;
const MODULE: Gva = Gva(0xffff_ffff_8112_1000);
const OTHER: Gva = Gva(0xffff_ffff_8112_2000);
/// Text of modules, page by page.
const TEXT: [Gva; 3] =
    [Gva(0xffff_ffff_8114_0000), Gva(0xffff_ffff_8114_2000), Gva(0xffff_ffff_8114_4000)];
const INIT_TEXT: Gva = Gva(0xffff_ffff_8114_8000);
const JUMP_LABELS: Gva = Gva(0xffff_ffff_8113_0000);
const LIVE: u32 = 0;
const COMING: u32 = 1;
const GOING: u32 = 2;
const PAGE: u32 = 0x1000;

fn module(state: u32, text: Gva) -> SampleModule {
    SampleModule {
        name: "hello",
        state,
        at: MODULE.0,
        text: (text.0, PAGE),
        symbols: vec![
            ("hello_work", text.0, 0x20, b't'),
            ("twice", text.0 + 0x40, 0x20, b't'),
            ("far_off", text.0 + 0x80, 0x20, b't'),
        ],
        ..SampleModule::default()
    }
}

fn with_init(state: u32, text: Gva) -> SampleModule {
    let mut module = module(state, text);
    module.init_text = (INIT_TEXT.0, PAGE);
    module.symbols.push(("hello_init", INIT_TEXT.0, 0x20, b't'));
    module
}

fn other() -> SampleModule {
    let text = TEXT[2];
    SampleModule {
        name: "other",
        at: OTHER.0,
        text: (text.0, PAGE),
        symbols: vec![("twice", text.0 + 0x40, 0x20, b't')],
        ..SampleModule::default()
    }
}

impl Fake {
    /// One that takes modules; it has booted.
    fn with_modules() -> Self {
        let types = sample::types(Form::Memories).btf();
        let fake = Self::with(ROOT, &format!("{HEAD:x} d modules\n"), Some(types));
        fake.load_kernel();
        for text in TEXT.into_iter().chain([INIT_TEXT]) {
            fake.write_module_text(text);
        }
        fake.set_modules(&[]);
        assert!(fake.begin());
        fake.finish_text();
        fake.store_u64(SYSTEM_STATE, 3);
        fake
    }

    fn write_module_text(&self, text: Gva) {
        for offset in [0, 0x40, 0x80] {
            self.write(text.wrapping_add(offset), &BODY);
        }
    }

    fn set_modules(&self, modules: &[SampleModule]) {
        let put = &mut |at, bytes: &[u8]| self.write(Gva(at), bytes);
        sample::write(Form::Memories, HEAD, modules, put);
    }

    /// The kernel comes by `at` with a module as its first argument.
    fn pass(&self, at: Gva, module: Gva) {
        assert_eq!(self.byte(at), INT3, "the engine's mark");
        let rsp = STACK.0;
        let regs = kvm_regs { rip: at.0, rdi: module.0, rsp, rflags: 2, ..kvm_regs::default() };
        let (action, regs) = self.breakpoint_of(regs);
        assert_eq!(action, BreakpointAction::Resume);
        assert_ne!(regs.rip, at.0, "nobody is in the way");
    }

    fn refused(&self, line: &str) -> &'static str {
        self.engine.register(parse_line(line).unwrap()).unwrap_err().code()
    }
}

const PENDING: [StatusFlag; 1] = [StatusFlag::Pending];
const GONE: [StatusFlag; 1] = [StatusFlag::Gone];
const CLEAN: [StatusFlag; 0] = [];

#[test]
fn a_probe_waits_for_its_module_and_goes_and_comes_with_it() {
    let fake = Fake::with_modules();
    fake.register("p:work hello:hello_work");
    fake.register("p:init hello:hello_init");
    fake.register("r:returns hello:hello_work");
    let reason = fake.status("work").reason.unwrap();
    assert!(reason.contains("no module named \"hello\" is loaded"), "{reason}");
    for (round, text) in (1..).zip([TEXT[0], TEXT[1], TEXT[0]]) {
        fake.set_modules(&[with_init(COMING, text)]);
        fake.engine.patrol();
        assert_eq!(fake.flags("work").len(), 1, "it may fail still, and go without a word");
        assert_eq!(fake.byte(text), BODY[0]);
        fake.pass(MODULE_BEGINS, MODULE);
        assert_eq!([fake.byte(text), fake.byte(INIT_TEXT)], [INT3, INT3]);
        assert_eq!((fake.flags("work"), fake.flags("init")), (CLEAN.to_vec(), CLEAN.to_vec()));
        assert_eq!(fake.run(INIT_TEXT), 1);
        fake.set_modules(&[module(LIVE, text)]);
        assert_eq!(fake.byte(INIT_TEXT), INT3);
        fake.pass(MODULE_INIT_FREED, Gva(0));
        assert_eq!(fake.byte(INIT_TEXT), BODY[0], "its memory may be anyone's");
        assert_eq!((fake.flags("init"), fake.flags("work")), (GONE.to_vec(), CLEAN.to_vec()));
        assert_eq!(fake.run(text), 1);
        fake.set_modules(&[module(GOING, text)]);
        fake.engine.patrol();
        assert_eq!(fake.run(text), 1, "its exit function runs still");
        fake.pass(MODULE_ENDS, MODULE);
        assert_eq!(fake.byte(text), BODY[0]);
        assert_eq!((fake.flags("work"), fake.flags("returns")), (GONE.to_vec(), GONE.to_vec()));
        fake.engine.patrol();
        assert_eq!((fake.byte(text), fake.flags("work")), (BODY[0], GONE.to_vec()));
        fake.set_modules(&[]);
        fake.engine.patrol();
        assert_eq!((fake.hits("work"), fake.hits("init")), (2 * round, round));
        assert_eq!(fake.breakpoint(text, STACK).0, BreakpointAction::PassToGuest);
    }
    fake.engine.unregister(Selection::all()).unwrap();
    for mark in [MODULE_BEGINS, MODULE_INIT_FREED, MODULE_ENDS] {
        assert_eq!(fake.byte(mark), BODY[0], "nobody wants it any more");
    }
}

#[test]
fn what_no_mark_told_the_patrol_sees() {
    let fake = Fake::with_modules();
    fake.register("p:work hello:hello_work");
    fake.set_modules(&[other(), module(LIVE, TEXT[0])]);
    fake.engine.patrol();
    assert_eq!((fake.flags("work"), fake.byte(TEXT[0])), (CLEAN.to_vec(), INT3));
    assert_eq!(fake.status("work").symbol_name.as_deref(), Some("hello:hello_work"));
    fake.set_modules(&[other(), module(LIVE, TEXT[1])]);
    fake.engine.patrol();
    assert_eq!([fake.byte(TEXT[0]), fake.byte(TEXT[1])], [BODY[0], INT3], "loaded elsewhere");
    assert_eq!(fake.flags("work"), CLEAN);
    fake.set_modules(&[other()]);
    fake.engine.patrol();
    assert_eq!((fake.flags("work"), fake.byte(TEXT[1])), (GONE.to_vec(), BODY[0]));
    fake.engine.patrol();
    assert_eq!(fake.flags("work"), GONE);
}

#[test]
fn names_are_looked_up_in_the_kernel_and_in_modules() {
    let fake = Fake::with_modules();
    fake.set_modules(&[module(LIVE, TEXT[0]), other()]);
    assert_eq!(fake.refused("p:e nosuch"), "ENOENT");
    assert_eq!(fake.refused("p:e hello:nosuch"), "ENOENT");
    assert_eq!(fake.refused("p:e twice"), "EADDRNOTAVAIL");
    assert_eq!(fake.refused("p:e far_off"), "EADDRNOTAVAIL", "the kernel has one, and a module");
    assert_eq!(fake.refused("p:e hello:hello_work+0x20"), "EINVAL");
    fake.register("p:bare hello_work+1");
    fake.register("p:one hello:twice");
    fake.register(&format!("p:addr {}", TEXT[2].wrapping_add(0x40)));
    let symbol = |event: &str| fake.status(event).symbol_name.unwrap();
    assert_eq!([symbol("bare"), symbol("addr")], ["hello:hello_work", "other:twice"]);
    let found = fake.engine.modules().unwrap();
    let told: Vec<_> = found.iter().map(|m| (&*m.name, m.state, m.symbols, &*m.probes)).collect();
    let probes =
        [["kprobes/bare", "kprobes/one"].map(String::from).to_vec(), vec!["kprobes/addr".into()]];
    let expected = [
        ("hello", ModuleState::Live, 3, &*probes[0]),
        ("other", ModuleState::Live, 1, &*probes[1]),
    ];
    assert_eq!(told, expected);
    assert_eq!(found[0].text, TEXT[0]..TEXT[0].wrapping_add(PAGE.into()));
}

#[test]
fn a_probe_by_address_does_not_come_back_for_another_module() {
    let fake = Fake::with_modules();
    fake.set_modules(&[module(LIVE, TEXT[2])]);
    let at = TEXT[2].wrapping_add(0x40);
    fake.register(&format!("p:addr {at}"));
    fake.set_modules(&[module(GOING, TEXT[2])]);
    fake.pass(MODULE_ENDS, MODULE);
    assert_eq!((fake.flags("addr"), fake.byte(at)), (GONE.to_vec(), BODY[0]));
    fake.set_modules(&[other()]);
    fake.engine.patrol();
    assert_eq!((fake.flags("addr"), fake.byte(at)), (GONE.to_vec(), BODY[0]));
}

#[test]
fn text_that_a_modules_tables_name_takes_no_probe() {
    let fake = Fake::with_modules();
    let label = TEXT[0].wrapping_add(4);
    let offset = u32::try_from(label.0.wrapping_sub(JUMP_LABELS.0)).unwrap();
    fake.write(JUMP_LABELS, &offset.to_le_bytes());
    let jump_labels = (JUMP_LABELS.0, 1);
    fake.set_modules(&[SampleModule { jump_labels, ..module(LIVE, TEXT[0]) }]);
    assert_eq!(fake.refused("p:label hello:hello_work+4"), "EOPNOTSUPP");
    let jump_labels = (JUMP_LABELS.0, u32::MAX);
    fake.set_modules(&[SampleModule { jump_labels, ..module(LIVE, TEXT[0]) }]);
    assert_eq!(fake.engine.modules().unwrap_err().code(), "EFAULT");
}

#[test]
fn a_broken_list_leaves_what_is_known_until_its_text_goes() {
    let fake = Fake::with_modules();
    fake.set_modules(&[module(LIVE, TEXT[0])]);
    fake.register("p:work hello:hello_work");
    fake.write(Gva(HEAD), &0x10_u64.to_le_bytes());
    fake.engine.patrol();
    let error = fake.engine.modules().unwrap_err();
    assert!(error.code() == "EFAULT" && error.to_string().contains("0x10"), "{error}");
    assert_eq!((fake.flags("work"), fake.run(TEXT[0])), (CLEAN.to_vec(), 1));
    fake.pass(MODULE_ENDS, OTHER);
    assert_eq!(fake.byte(TEXT[0]), INT3, "another's end");
    fake.pass(MODULE_ENDS, MODULE);
    assert_eq!((fake.flags("work"), fake.byte(TEXT[0])), (GONE.to_vec(), BODY[0]));
}

#[test]
fn a_kernel_without_modules_says_so() {
    let fake = Fake::booted();
    assert_eq!(fake.refused("p:e hello:hello_work"), "ENODATA");
    assert_eq!(fake.engine.modules().unwrap_err().code(), "ENODATA");
    let fake = Fake::with(ROOT, &format!("{HEAD:x} d modules\n"), None);
    fake.load_kernel();
    fake.register("p:early hello:hello_work");
    assert!(fake.begin());
    fake.finish_text();
    fake.store_u64(SYSTEM_STATE, 3);
    let refused = fake.engine.modules().unwrap_err().to_string();
    assert!(refused.contains("--btf"), "{refused}");
    assert_eq!(fake.refused("p:e hello:hello_work"), "ENODATA");
    assert_eq!(fake.flags("early"), PENDING);
    fake.engine.patrol();
    assert_eq!(fake.byte(MODULE_BEGINS), BODY[0], "nothing would come of it");
}

#[test]
fn modules_that_are_loaded_at_boot_find_probes_that_were_there_before() {
    let types = sample::types(Form::Memories).btf();
    let fake = Fake::with(ROOT, &format!("{HEAD:x} d modules\n"), Some(types));
    fake.register("p:work hello:hello_work");
    fake.load_kernel();
    fake.write_module_text(TEXT[0]);
    fake.set_modules(&[]);
    assert!(fake.begin());
    assert_eq!(fake.byte(MODULE_BEGINS), BODY[0], "none before it is itself");
    fake.finish_text();
    fake.set_modules(&[module(COMING, TEXT[0])]);
    fake.pass(MODULE_BEGINS, MODULE);
    assert_eq!((fake.flags("work"), fake.run(TEXT[0])), (CLEAN.to_vec(), 1));
    fake.hook.reset();
    assert_eq!(fake.flags("work"), PENDING);
}

#[test]
fn very_many_probes_go_and_come_with_their_module() {
    const MANY: usize = 20_000;
    let fake = Fake::with_modules();
    let line = |n: usize| parse_line(&format!("p:e{n} hello:hello_work+{}", [0, 1, 4][n % 3]));
    let probes = (0..MANY).map(|n| line(n).unwrap()).collect::<Vec<_>>();
    fake.engine.register(probes).unwrap();
    for _ in 0..2 {
        fake.set_modules(&[module(LIVE, TEXT[0])]);
        fake.engine.patrol();
        assert_eq!((fake.flags("e0"), fake.byte(TEXT[0])), (CLEAN.to_vec(), INT3));
        fake.pass(MODULE_ENDS, MODULE);
        assert_eq!((fake.flags("e19999"), fake.byte(TEXT[0])), (GONE.to_vec(), BODY[0]));
        fake.set_modules(&[]);
        fake.engine.patrol();
    }
    fake.engine.unregister(Selection::all()).unwrap();
}
