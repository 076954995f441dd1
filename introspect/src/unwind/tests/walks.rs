use super::*;

const BY_SP: OrcEntry = OrcEntry {
    kind: OrcType::Call,
    sp: Base::Sp,
    sp_offset: 24,
    bp: Base::Undefined,
    bp_offset: 0,
    signal: false,
};

/// Functions of 0x100 bytes: a leaf found by RSP, one found by RBP, the system call's entry, an
/// interrupt's on a stack of its own, one at whose first instruction the entry is another than
/// before.
fn rows(end: OrcType) -> Vec<Row> {
    vec![
        Row(0, BY_SP),
        Row(0x100, call((Base::Bp, 16), (Base::PrevSp, -16))),
        Row(0x200, of_kind(OrcType::Regs)),
        Row(0x300, call((Base::SpIndirect, 8), (Base::Undefined, 0))),
        Row(0x400, of_kind(OrcType::RegsPartial)),
        Row(0x500, of_kind(OrcType::EndOfStack)),
        Row(0x600, call((Base::R10, 0), (Base::Bp, -8))),
        Row(0x700, of_kind(end)),
        Row(0x800, of_kind(OrcType::Undefined)),
    ]
}

#[test]
fn a_system_call_is_followed_to_user_mode_in_every_layout() {
    for (version, layout) in VERSIONS {
        let mut model = Model::new().rows(layout, &rows(OrcType::Undefined));
        // The leaf's locals and return address, then a frame whose RBP the leaf has left alone.
        model.words(TASK, &[1, 2, TEXT + 0x110, 0, 0, 0x5555, TEXT + 0x210]);
        model.regs(TASK + 56, 0x40_1000, USER_CS, USER, USER + 0x20);
        model.words(USER + 0x20, &[USER + 0x40, 0x40_2000]);
        model.words(USER + 0x40, &[0, 0x40_3000]);
        let tables = model.tables(version).unwrap();
        let (frames, user) = model.walk(Some(&tables), place(0x10, TASK, TASK + 40));
        assert_eq!(frames, [0x110, 0x210], "{layout:?}");
        let user = user.expect("it came from there");
        assert_eq!(user, UserPlace { ip: Gva(0x40_1000), sp: Gva(USER), bp: Gva(USER + 0x20) });
        let image = model.image();
        let stack = Memory(VirtualMemory::with_mode(&image, MODE));
        let above: Vec<u64> = user_frames(&stack, user).map(|frame| frame.0).collect();
        assert_eq!(above, [0x40_1000, 0x40_2000, 0x40_3000]);
    }
}

/// An interrupt came in at the first instruction of the function at 0x100.
#[test]
fn an_interrupts_stack_leads_to_what_was_interrupted() {
    let (version, layout) = VERSIONS[2];
    let rows = [
        Row(0x300, call((Base::SpIndirect, 8), (Base::Undefined, 0))),
        Row(0x400, of_kind(OrcType::Regs)),
    ];
    let rows =
        [&self::rows(OrcType::Undefined)[..2], &rows, &[Row(0x500, of_kind(OrcType::EndOfStack))]]
            .concat();
    let mut model = Model::new().rows(layout, &rows);
    // On top of its stack the way back to the other, where the return address is below.
    model.words(IRQ, &[TASK + 0x100]);
    model.words(TASK + 0x100, &[TEXT + 0x410]);
    model.regs(TASK + 0x108, TEXT + 0x100, 0x10, TASK + 0x200, TASK + 0x210);
    model.words(TASK + 0x210, &[0, TEXT + 0x501]);
    let tables = model.tables(version).unwrap();
    let (frames, user) = model.walk(Some(&tables), place(0x310, IRQ, 0));
    assert_eq!(frames, [0x410, 0x100, 0x501], "the interrupted instruction, by its own entry");
    assert_eq!(user, None);
    // From a slot, in place of the instruction that it has.
    model.word(TASK + 0x108 + pt_regs::IP, SLOT);
    assert_eq!(model.walk(Some(&tables), place(0x310, IRQ, 0)).0, [0x410, 0x100, 0x501]);
}

#[test]
fn before_linux_5_12_an_indirect_offset_counts_before_the_word() {
    let model = |version| {
        let rows = [
            Row(0, call((Base::SpIndirect, 16), (Base::Undefined, 0))),
            Row(0x100, of_kind(OrcType::EndOfStack)),
        ];
        let mut model = Model::new().rows(Layout::Typed, &rows);
        model.words(IRQ, &[TASK + 0x100, 0, TASK + 0x200]);
        model.words(TASK + 0x108, &[TEXT + 0x20]);
        model.words(TASK + 0x1f8, &[TEXT + 0x30]);
        let tables = model.tables(version).unwrap();
        model.walk(Some(&tables), place(0x10, IRQ, 0)).0[0]
    };
    assert_eq!(model(Version { major: 5, minor: 12, patch: 0 }), 0x20);
    assert_eq!(model(Version { major: 5, minor: 11, patch: 22 }), 0x30);
}

#[test]
fn a_trampoline_shows_as_where_its_call_returns_to() {
    let (version, layout) = VERSIONS[0];
    let mut model = Model::new().rows(layout, &rows(OrcType::Undefined));
    model.words(TASK, &[0, 0, TRAMPOLINE, 0, TEXT + 0x501]);
    let tables = model.tables(version).unwrap();
    let (frames, _) = model.walk(Some(&tables), place(0x10, TASK, TASK + 24));
    assert_eq!(frames, [0x155, 0x501], "and it is gone on from there");
}

#[test]
fn a_place_that_a_call_returned_to_is_looked_up_as_such() {
    let (version, layout) = VERSIONS[2];
    let mut model = Model::new().rows(layout, &rows(OrcType::Undefined));
    model.words(TASK, &[0, 0, TEXT + 0x501]);
    let tables = model.tables(version).unwrap();
    // The call is the last instruction of the leaf.
    assert_eq!(model.walk(Some(&tables), place(0x100, TASK, 0).returned()).0, [0x501]);
    assert!(model.walk(Some(&tables), place(0x100, TASK, 0)).0.is_empty());
}

#[test]
fn other_registers_are_known_at_the_beginning_and_where_all_are_saved() {
    let (version, layout) = VERSIONS[2];
    let mut model = Model::new().rows(layout, &rows(OrcType::Undefined));
    model.words(TASK + 0x38, &[TEXT + 0x501]);
    model.words(TASK + 0x78, &[0x1234]);
    let tables = model.tables(version).unwrap();
    let regs = kvm_regs { rsp: TASK, rbp: TASK + 0x80, r10: TASK + 0x40, ..kvm_regs::default() };
    let at = Place::at(Gva(TEXT + 0x610), &regs);
    assert_eq!(model.walk(Some(&tables), at).0, [0x501]);
    // Of a function that was called they are not.
    model.words(TASK + 0x100, &[0, 0, TEXT + 0x610]);
    assert_eq!(model.walk(Some(&tables), place(0x10, TASK + 0x100, 0)).0, [0x610]);
    // Of one that was interrupted they are.
    model.regs(TASK + 0x200, TEXT + 0x610, 0x10, TASK, TASK + 0x80);
    model.word(TASK + 0x200 + pt_regs::R10, TASK + 0x40);
    assert_eq!(model.walk(Some(&tables), place(0x210, TASK + 0x200, 0)).0, [0x610, 0x501]);
}

#[test]
fn an_exceptions_frame_keeps_the_registers_that_it_does_not_save() {
    let (version, layout) = VERSIONS[0];
    let mut model = Model::new().rows(layout, &rows(OrcType::Undefined));
    model.words(TASK, &[TEXT + 0x110, 0x10, 2, TASK + 0x100, 0x18]);
    model.words(TASK + 0x110, &[0, TEXT + 0x501]);
    let tables = model.tables(version).unwrap();
    let (frames, _) = model.walk(Some(&tables), place(0x410, TASK, TASK + 0x110));
    assert_eq!(frames, [0x110, 0x501]);
}

#[test]
fn stacks_that_lead_back_or_round_in_circles_end() {
    let (version, layout) = VERSIONS[2];
    let mut model = Model::new().rows(layout, &rows(OrcType::Regs));
    let tables = model.tables(version).unwrap();
    // A frame that is its own caller.
    model.words(TASK + 0x10, &[TASK + 0x10, TEXT + 0x110]);
    let (frames, _) = model.walk(Some(&tables), place(0x110, TASK, TASK + 0x10));
    assert_eq!(frames, [0x110], "it went up once");
    // Registers that say that they were interrupted by themselves.
    model.regs(TASK + 0x100, TEXT + 0x210, 0x10, TASK + 0x100, 0);
    let (frames, _) = model.walk(Some(&tables), place(0x210, TASK + 0x100, 0));
    assert_eq!(frames.len(), SWITCHES_MAX as usize);
    // Upwards, as far as there is a stack.
    let mut model = Model::new().rows(
        layout,
        &[
            Row(0, call((Base::Sp, 8), (Base::Undefined, 0))),
            Row(0x100, of_kind(OrcType::EndOfStack)),
        ],
    );
    model.words(TASK, &[TEXT + 0x10; 0x100]);
    let tables = model.tables(version).unwrap();
    assert_eq!(model.walk(Some(&tables), place(0x10, TASK, 0)).0.len(), FRAMES_MAX);
    // What is no address of the kernel.
    model.words(TASK, &[0x40_0000]);
    assert!(model.walk(Some(&tables), place(0x10, TASK, 0)).0.is_empty());
}

#[test]
fn code_that_tables_do_not_know_is_followed_by_frame_pointers() {
    let (version, layout) = VERSIONS[2];
    let mut model = Model::new().rows(layout, &rows(OrcType::Undefined));
    model.words(TASK + 0x20, &[TASK + 0x60, TEXT + 0x110]);
    model.words(TASK + 0x60, &[0, TEXT + 0x501]);
    let tables = model.tables(version).unwrap();
    let (frames, _) = model.walk(Some(&tables), place(0x9000, TASK, TASK + 0x20));
    assert_eq!(frames, [0x110, 0x501]);
}
