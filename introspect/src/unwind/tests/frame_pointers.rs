use super::*;

#[test]
fn frame_pointers_are_followed_to_the_system_calls_entry_and_user_mode() {
    let mut model = Model::new();
    model.words(TASK + 0x10, &[TASK + 0x40, TEXT + 0x110]);
    model.words(TASK + 0x40, &[0, TRAMPOLINE]);
    let (frames, user) = model.walk(None, place(0, TASK, TASK + 0x10));
    assert_eq!((frames, user), (vec![0x110, 0x155], None), "a thread of the kernel's");
    model.regs(TASK + 0x50, 0x40_1000, USER_CS, USER, USER + 0x20);
    let (frames, user) = model.walk(None, place(0, TASK, TASK + 0x10));
    assert_eq!(frames, [0x110, 0x155]);
    assert_eq!(user, Some(UserPlace { ip: Gva(0x40_1000), sp: Gva(USER), bp: Gva(USER + 0x20) }));
    // Frames of 32-bit code are not followed.
    model.regs(TASK + 0x50, 0x40_1000, USER32_CS, USER, USER + 0x20);
    let (_, user) = model.walk(None, place(0, TASK, TASK + 0x10));
    assert_eq!(user.map(|user| user.bp), Some(Gva(0)));
}

#[test]
fn a_frame_pointer_may_be_the_address_of_registers() {
    let mut model = Model::new();
    model.words(IRQ + 0x10, &[(TASK + 0x100) | ENCODED, TEXT + 0x110]);
    model.words(IRQ + 0x100, &[0]);
    let (frames, _) = model.walk(None, place(0, IRQ, IRQ + 0x10));
    assert_eq!(frames, [0x110], "registers are on the stack that they were saved on");
    model.words(IRQ + 0x10, &[(IRQ + 0x100) | ENCODED, TEXT + 0x110]);
    model.regs(IRQ + 0x100, TEXT + 0x300, 0x10, TASK, TASK + 0x20);
    model.words(TASK + 0x20, &[0, TEXT + 0x400]);
    let (frames, _) = model.walk(None, place(0, IRQ, IRQ + 0x10));
    assert_eq!(frames, [0x110, 0x300, 0x400]);
}

#[test]
fn a_function_without_its_frame_has_its_caller_by_the_stack_pointer() {
    let mut model = Model::new();
    model.words(TASK, &[0x7777, TEXT + 0x110]);
    model.words(TASK + 0x20, &[0, TEXT + 0x210]);
    let from = place(0, TASK, TASK + 0x20);
    assert_eq!(model.walk(None, from).0, [0x210], "its caller is not seen");
    assert_eq!(model.walk(None, from.without_frame(8)).0, [0x110, 0x210]);
    model.words(TASK, &[TEXT + 0x110]);
    assert_eq!(model.walk(None, from.without_frame(0)).0, [0x110, 0x210]);
}

#[test]
fn frames_that_lead_anywhere_end() {
    let mut model = Model::new();
    let ends = [
        (TASK + 0x10, "itself"),
        (TASK - 8, "below"),
        (TASK + 0x21, "no registers there"),
        (TASK + 0x24, "not aligned"),
        (TASK + STACK_SPAN + 0x100, "far off"),
        (0x20, "in user memory"),
    ];
    for (next, why) in ends {
        model.words(TASK + 0x10, &[next, TEXT + 0x110]);
        assert_eq!(model.walk(None, place(0, TASK, TASK + 0x10)), (vec![0x110], None), "{why}");
    }
    // The stack ends, and with it what is mapped.
    let at = KERNEL + (1 << 30) - 16;
    assert!(model.walk(None, place(0, at, at)).0.is_empty());
}

#[test]
fn user_frames_go_up_and_end() {
    let mut model = Model::new();
    let frames = |model: &Model, bp: u64| {
        let image = model.image();
        let stack = Memory(VirtualMemory::with_mode(&image, MODE));
        let from = UserPlace { ip: Gva(1), sp: Gva(USER), bp: Gva(bp) };
        user_frames(&stack, from).map(|frame| frame.0).collect::<Vec<_>>()
    };
    model.words(USER, &[USER, 2]);
    assert_eq!(frames(&model, USER), [1, 2], "a circle");
    assert_eq!(frames(&model, USER - 16), [1], "below");
    assert_eq!(frames(&model, USER + 4), [1]);
    assert_eq!(frames(&model, !7), [1]);
    assert_eq!(frames(&model, 0x7f00_0000_0000), [1], "not mapped");
    model.words(USER, &[USER + 16, KERNEL]);
    assert_eq!(frames(&model, USER), [1], "no address of user mode");
    for n in 0..100 {
        model.words(USER + n * 16, &[USER + n * 16 + 16, 3]);
    }
    assert_eq!(frames(&model, USER).len(), FRAMES_MAX);
}
