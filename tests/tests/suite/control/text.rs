//! Text that the guest rewrites.

use exoprobe_guest::Gpa;
use exoprobe_guest::layout::KERNEL_IMAGE_BASE;
use exoprobe_probes::{Selection, StatusFlag};
use exoprobe_tests::harness::Case;
use exoprobe_tests::{TestGuest, cases};

pub(crate) const CASES: &[Case] =
    cases![text_that_is_rewritten_is_the_guests_until_it_is_back(vcpus)];

const NOP: u8 = 0x90;
const INT3: u8 = 0xcc;

fn text_that_is_rewritten_is_the_guests_until_it_is_back(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    guest.probe("p:entry __x64_sys_getpid");
    guest.probe("p:next __x64_sys_getpid+1");
    assert_eq!(guest.work("getpid 10"), 10);
    let entry = guest.status("entry");
    let at = entry.addr.expect("it is placed");
    let gpa = Gpa(at.0 - KERNEL_IMAGE_BASE.0);
    assert_eq!(entry.instruction.as_deref(), Some("push rbp"), "one byte, which pushes");
    let byte = |byte: u8| guest.vm.ram().store_byte(gpa, byte).unwrap();

    guest.vm.pause().unwrap();
    byte(NOP);
    guest.engine.patrol();
    assert_eq!(guest.status("entry").flags, [StatusFlag::Clobbered]);
    assert_eq!(guest.status("next").flags, []);
    assert_eq!(guest.vm.ram().load_byte(gpa), Ok(NOP));
    byte(0x55);
    guest.engine.patrol();
    assert_eq!(guest.status("entry").flags, []);
    assert_eq!(guest.vm.ram().load_byte(gpa), Ok(INT3));
    guest.vm.resume().unwrap();
    assert_eq!(guest.work("getpid 10"), 10);
    assert_eq!((guest.hits("entry"), guest.hits("next")), (20, 20));

    // The guest itself puts its instruction back, over the breakpoint.
    byte(0x55);
    assert_eq!(guest.work("getpid 10"), 10);
    assert_eq!((guest.hits("entry"), guest.hits("next")), (20, 30));
    guest.engine.patrol();
    assert_eq!(guest.work("getpid 10"), 10);
    assert_eq!((guest.hits("entry"), guest.hits("next")), (30, 40));
    guest.assert_unharmed();
    guest.engine.unregister(Selection::all()).unwrap();
    assert_eq!(guest.vm.ram().load_byte(gpa), Ok(0x55));
    guest.assert_unharmed();
}
