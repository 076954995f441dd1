//! Bad input: a clear error, nothing changed, the guest unharmed.

use exoprobe_guest::Gva;
use exoprobe_probes::{AttachError, Kprobe, ProbeDefinition, ProbeError, Selection};
use exoprobe_tests::harness::Case;
use exoprobe_tests::{TestGuest, cases, definition, kernel_symbols};

use crate::support::tables::table_of;

pub(crate) const CASES: &[Case] = cases![
    each_bad_definition_has_its_errno_and_says_what_to_do(vcpus) needs [Kvm, Repeat],
    a_batch_is_registered_whole_or_not_at_all(vcpus),
    instructions_that_cannot_run_elsewhere_are_refused_with_the_reason(vcpus) needs [Kvm, Repeat],
    text_and_tables_that_the_guest_changed_are_left_alone(vcpus),
    text_that_the_kernel_rewrites_is_refused_everywhere(vcpus),
];

fn refused(guest: &TestGuest, definition: ProbeDefinition) -> ProbeError {
    let text = guest.list_text();
    let error = guest.engine.register(definition).expect_err("it is refused");
    assert_eq!(guest.list_text(), text, "nothing was registered");
    error.error
}

fn line(text: &str) -> ProbeDefinition {
    definition(text)
}

fn each_bad_definition_has_its_errno_and_says_what_to_do(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    guest.probe("p:taken __x64_sys_getpid");
    let data = kernel_symbols().lookup("init_task").unwrap().address;
    let args = ["x=%di", "x=%si"].map(|arg| arg.parse().unwrap()).to_vec();
    let cases = [
        (line("p:a __x64_sys_getpidd"), "ENOENT", "__x64_sys_getpid"),
        (ProbeDefinition { addr: Some(Gva(1)), ..line("p:a __x64_sys_getpid") }, "EINVAL", "both"),
        (ProbeDefinition::default(), "EINVAL", "neither"),
        (ProbeDefinition { addr: Some(data), ..Default::default() }, "EINVAL", "text"),
        (line("p:a 0x1000"), "EINVAL", "text"),
        (line("p:a 0xffffffffffffffff"), "EINVAL", "text"),
        (line("p:a __x64_sys_getpid+2"), "EILSEQ", "xor"),
        (line("p:a __x64_sys_getpid+4096"), "EINVAL", "beyond"),
        (line("p:a __x64_sys_getpid+18446744073709551615"), "EINVAL", "beyond"),
        (line("p:taken __x64_sys_getppid"), "EEXIST", "taken"),
        (line("p:a init_task"), "ENOENT", "init_task"),
        // The language itself refuses these two; a definition in JSON may have them.
        (ProbeDefinition { args, ..line("p:a __x64_sys_getpid") }, "EINVAL", "`x`"),
        (line("p:a asm_exc_nmi"), "EOPNOTSUPP", "NMI"),
        (line("p:a start_kernel"), "EOPNOTSUPP", "init text"),
        (line("p:a __SCT__amd_pmu_branch_add"), "EOPNOTSUPP", "static call"),
        (
            ProbeDefinition { event: Some("no-good".to_owned()), ..line("p:a vfs_read") },
            "EINVAL",
            "no-good",
        ),
    ];
    for (definition, code, part) in cases {
        let shown = format!("{definition:?}");
        let error = refused(&guest, definition);
        assert!(error.code().starts_with(code), "{shown}: {} {error}", error.code());
        assert!(error.to_string().contains(part), "{shown}: {error}");
    }
    guest.work("getpid 10");
    assert_eq!(guest.hits("taken"), 10);
    guest.assert_unharmed();
}

fn a_batch_is_registered_whole_or_not_at_all(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    let batch = ["p:one __x64_sys_getpid", "p:two vfs_read", "p:three no_such_function"];
    let probes: Vec<Kprobe> = batch.iter().map(|l| line(l).into()).collect();
    let error = guest.engine.register(probes).unwrap_err();
    assert_eq!((error.index, error.name.as_str()), (2, "three"));
    assert!(guest.engine.list().is_empty());
    let twice: Vec<Kprobe> =
        ["p:same vfs_read", "p:same vfs_write"].iter().map(|l| line(l).into()).collect();
    assert!(matches!(guest.engine.register(twice).unwrap_err().error, ProbeError::NameTaken(_)));
    assert_eq!(guest.probes(["p:one __x64_sys_getpid".to_owned()].into_iter()), 1);
    guest.assert_unharmed();
}

/// Instructions that must not run displaced: WARN's ud2, sti, hlt; and those the kernel rewrites
/// itself or fixes up by address.
fn instructions_that_cannot_run_elsewhere_are_refused_with_the_reason(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    let symbols = kernel_symbols();
    let mut reasons = std::collections::BTreeMap::<String, u32>::new();
    for function in [
        "default_idle",
        "_raw_spin_unlock_irq",
        "__warn_printk",
        "copy_user_generic_string",
        "schedule",
        "do_exit",
        "__get_user_4",
        "rdmsr_safe_on_cpu",
        "native_read_msr_safe",
    ] {
        let Ok(symbol) = symbols.lookup_function(function) else { continue };
        let bounds = symbols.function_at(symbol.address).unwrap();
        for offset in 0..bounds.end.0 - bounds.start.0 {
            if let Err(error) = guest.check(&format!("p:x {function}+{offset}")) {
                *reasons.entry(error.code().to_owned()).or_default() += 1;
            }
        }
    }
    assert!(reasons["EOPNOTSUPP"] > 3, "{reasons:?}");
    assert!(reasons["EILSEQ"] > 100, "{reasons:?}");
    guest.assert_unharmed();
}

fn text_and_tables_that_the_guest_changed_are_left_alone(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    guest.probe("p:getpid __x64_sys_getpid");
    let at = guest.engine.show("kprobes", "getpid").unwrap().addr.unwrap();
    let gpa = exoprobe_guest::Gpa(at.0 - 0xffff_ffff_8000_0000);
    guest.vm.pause().unwrap();
    guest.vm.ram().store_byte(gpa, 0x90).unwrap();
    let error = guest.engine.unregister(Selection::kprobe("kprobes", "getpid")).unwrap_err();
    assert_eq!(error.code(), "ETXTBSY");
    assert_eq!(guest.vm.ram().load_byte(gpa), Ok(0x90), "never overwritten blindly");
    assert!(guest.engine.list().is_empty(), "gone all the same");
    let refused = guest.engine.register(line("p:again vfs_read"));
    assert!(refused.is_ok());

    // Hidden memory's entry in the guest's page directory, wiped.
    let base = guest.vm.hidden().base().unwrap();
    let mode = guest.paging_mode();
    let table = exoprobe_guest::paging::table_for(guest.vm.ram(), mode, base, 2).unwrap();
    let entry = exoprobe_guest::paging::entry_address(table, base, 2);
    guest.vm.ram().store_u64(entry, 0).unwrap();
    let error = guest.engine.register(line("p:more vfs_write")).unwrap_err();
    assert!(matches!(error.error, ProbeError::Attach(AttachError::Hidden(_))), "{error}");
}

fn text_that_the_kernel_rewrites_is_refused_everywhere(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    let tables = [
        ("__start___jump_table", "__stop___jump_table", 16, "static key"),
        ("__start_static_call_sites", "__stop_static_call_sites", 8, "static call"),
    ];
    for (start, stop, entry, reason) in tables {
        let addresses = table_of(&guest, start, stop, entry);
        assert!(addresses.len() > 20, "{reason}: {} entries", addresses.len());
        let mut refused = 0;
        for addr in addresses {
            let probe = ProbeDefinition { addr: Some(addr), ..ProbeDefinition::default() };
            // Init text, gone by now, is in the tables too and refused for another reason.
            let error = guest.engine.register(probe).expect_err(reason);
            refused +=
                u32::from(error.code() == "EOPNOTSUPP" && error.to_string().contains(reason));
        }
        assert!(refused > 20, "{reason}: only {refused} say so");
    }
    guest.assert_unharmed();
}
