//! RAM is searched while the guest runs and writes.

use std::sync::atomic::AtomicU32;
use std::sync::{Mutex, PoisonError};

use super::*;
use crate::{Optimization, Selection};

/// A booted guest with a probe at `far_off` that can be optimized.
fn ready() -> Fake {
    let fake = Fake::booted();
    fake.register("p:far far_off %di");
    fake.run(FREE_INITMEM);
    fake
}

/// Sets the vCPU's stores before each read of the log, by the read's number.
fn before_reads(fake: &Fake, mut act: impl FnMut(&FakeGuest, u32) -> Vec<Gpa> + Send + 'static) {
    // The guest has the closure: no circle.
    let guest = Arc::downgrade(&fake.guest);
    let writes = move |read| guest.upgrade().map(|guest| act(&guest, read)).unwrap_or_default();
    *fake.guest.writes.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(writes));
}

/// A store of the vCPU, which is not the host's.
fn store(guest: &FakeGuest, word: u64) -> Gpa {
    let at = gpa(STACK);
    guest.ram.word(at).unwrap().store(word, Ordering::SeqCst);
    at
}

const INSIDE: u64 = FAR_OFF.0 + 1;
const BUSY: &str = "busy: a task was within what the jmp would cover";
const NONE: Optimization = Optimization { optimized: 0, waiting: 1, total: 0 };
const DONE: Optimization = Optimization { optimized: 1, waiting: 0, total: 1 };

/// Reads of the log in a pass: after the first look, after the next, and in the stop.
const READS: u32 = 3;

#[test]
fn a_task_that_comes_after_its_page_was_looked_at_is_found() {
    for when in 0..READS {
        let fake = ready();
        let reads = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&reads);
        before_reads(&fake, move |guest, read| {
            count.store(read + 1, Ordering::SeqCst);
            if read == when { vec![store(guest, INSIDE)] } else { Vec::new() }
        });
        assert_eq!(fake.engine.optimize(), NONE, "at read {when}");
        assert_eq!(reads.load(Ordering::SeqCst), READS);
        assert_eq!(fake.status("far").unoptimized_reason.as_deref(), Some(BUSY));
        assert_eq!(fake.byte(FAR_OFF), INT3);
    }
}

#[test]
fn a_task_that_goes_after_its_page_was_looked_at_is_not_waited_for() {
    for when in 0..READS {
        let fake = ready();
        store(&fake.guest, INSIDE);
        before_reads(
            &fake,
            move |guest, read| {
                if read == when { vec![store(guest, 0)] } else { Vec::new() }
            },
        );
        assert_eq!(fake.engine.optimize(), DONE, "at read {when}");
    }
}

#[test]
fn what_the_host_writes_meanwhile_is_found() {
    for when in 0..READS {
        let fake = ready();
        before_reads(&fake, move |guest, read| {
            if read == when {
                guest.ram.store_u64(gpa(STACK), INSIDE).unwrap();
            }
            Vec::new()
        });
        assert_eq!(fake.engine.optimize(), NONE, "at read {when}");
    }
}

#[test]
fn a_task_that_only_a_register_shows_is_found() {
    let fake = ready();
    fake.guest.registers.lock().unwrap().regs.rip = INSIDE;
    assert_eq!(fake.engine.optimize(), NONE);
    fake.guest.registers.lock().unwrap().regs = kvm_regs { rbx: INSIDE, ..kvm_regs::default() };
    let mut passes = std::iter::repeat_with(|| fake.engine.optimize());
    assert!(passes.by_ref().take(20).any(|pass| pass == NONE), "it is examined again");
    fake.guest.registers.lock().unwrap().regs = kvm_regs::default();
    assert!(passes.take(20).any(|pass| pass == DONE));
}

/// The check of debug builds: all RAM is looked at in the stop, too.
#[test]
#[should_panic(expected = "the search missed [0]")]
fn a_store_that_the_log_misses_is_noticed() {
    let fake = ready();
    before_reads(&fake, |guest, _| {
        store(guest, INSIDE);
        Vec::new()
    });
    fake.engine.optimize();
}

/// Pages above everything else, from this one of them on.
fn pages(first: u64, count: u64) -> Vec<Gpa> {
    const START: u64 = 0x140_0000;
    (first..first + count).map(|page| Gpa(START + page % 2048 * PAGE_SIZE)).collect()
}

#[test]
fn a_guest_that_writes_without_end_is_not_waited_for_and_the_reason_is_shown() {
    let fake = ready();
    before_reads(&fake, |_, read| pages(u64::from(read) * 600, 600));
    assert_eq!(fake.engine.optimize(), NONE);
    let reason = fake.status("far").unoptimized_reason.unwrap();
    assert!(reason.starts_with("busy: the guest writes its memory faster than"), "{reason}");
    assert_eq!(fake.byte(FAR_OFF), INT3);
    let statistics = fake.engine.stop_statistics();
    assert!(statistics.stops > 64 && statistics.searches.most_pages_stopped == 512);
    *fake.guest.writes.lock().unwrap() = None;
    let mut passes = std::iter::repeat_with(|| fake.engine.optimize()).take(20);
    assert!(passes.any(|pass| pass == DONE), "once it writes less");
}

#[test]
fn a_guest_that_writes_much_is_slowed_down_until_the_rest_fits_into_a_stop() {
    let fake = ready();
    before_reads(&fake, |guest, read| match read {
        0..30 => pages(u64::from(read) * 2000, 2000),
        30 => vec![store(guest, INSIDE)],
        _ => Vec::new(),
    });
    assert_eq!(fake.engine.optimize(), NONE);
    assert_eq!(fake.status("far").unoptimized_reason.as_deref(), Some(BUSY));
    let statistics = fake.engine.stop_statistics();
    assert!(statistics.stops > 20, "{statistics:?}");
    assert_eq!(statistics.searches.most_pages_stopped, 512, "no more");
}

#[test]
fn without_a_log_all_ram_is_searched_in_the_stop_and_the_reason_is_known() {
    let fake = ready();
    fake.guest.is_logless.store(true, Ordering::SeqCst);
    store(&fake.guest, INSIDE);
    assert_eq!(fake.engine.optimize(), NONE);
    let searches = fake.engine.stop_statistics().searches;
    assert_eq!((searches.searches, searches.all_stopped, searches.pages_running), (1, 1, 0));
    let reason = "the guest's writes cannot be logged: a host without a log";
    assert_eq!(searches.reason.as_deref(), Some(reason));
    store(&fake.guest, 0);
    let mut passes = std::iter::repeat_with(|| fake.engine.optimize()).take(20);
    assert!(passes.any(|pass| pass == DONE));
}

/// The thread that searches may be the one that drains.
#[test]
fn hits_are_drained_while_ram_is_searched() {
    let fake = ready();
    assert_eq!(fake.run(FAR_OFF), 1);
    let engine = Arc::downgrade(&fake.engine);
    let drained = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&drained);
    before_reads(&fake, move |_, read| {
        let engine = engine.upgrade().expect("it searches");
        if read == 0 && engine.events().read(1, 10).events.len() == 1 {
            count.fetch_add(1, Ordering::SeqCst);
        }
        Vec::new()
    });
    assert_eq!((fake.engine.optimize(), drained.load(Ordering::SeqCst)), (DONE, 1));
}

/// Nothing is locked meanwhile.
#[test]
fn a_change_during_the_search_voids_it() {
    let fake = ready();
    let engine = Arc::clone(&fake.engine);
    let once = Mutex::new(Some(engine));
    before_reads(&fake, move |_, _| {
        if let Some(engine) = once.lock().unwrap().take() {
            engine.unregister(Selection::all()).unwrap();
        }
        Vec::new()
    });
    assert_eq!(fake.engine.optimize(), NONE);
    assert_eq!(fake.byte(FAR_OFF), BODY[0]);
    let window = fake.guest.hidden.detour_window().unwrap();
    let mut code = [0; 64];
    fake.guest.hidden.read(window.offset, &mut code);
    assert_eq!(code, [0; 64], "its memory was given back");
    fake.register("p:far far_off %di");
    assert_eq!(fake.engine.optimize(), DONE);
}

#[test]
fn a_boot_during_the_search_voids_it() {
    let fake = ready();
    let hook = Mutex::new(Some(Arc::clone(&fake.hook)));
    before_reads(&fake, move |_, _| {
        if let Some(hook) = hook.lock().unwrap().take() {
            hook.reset();
        }
        Vec::new()
    });
    assert_eq!(fake.engine.optimize(), NONE);
    assert_eq!(fake.flags("far"), [StatusFlag::Pending]);
    assert_eq!(fake.engine.optimize().total, 0);
}

#[test]
fn a_batch_is_one_stop_whatever_its_size() {
    let places = ["work", "far_off"];
    let stops_of = |count: usize| {
        let fake = Fake::booted();
        fake.run(FREE_INITMEM);
        for place in &places[..count] {
            fake.register(&format!("p:at_{place} {place}"));
        }
        let stops = || fake.engine.stop_statistics().stops;
        let before = stops();
        let optimized = fake.engine.optimize().optimized;
        let installed = stops();
        fake.engine.set_enabled(Selection::all(), false).unwrap();
        (optimized, installed - before, stops() - installed)
    };
    // One puts the int3s back, the other looks whether all tasks have left the detours.
    assert_eq!(stops_of(1), (1, 1, 2));
    assert_eq!(stops_of(places.len()), (places.len(), 1, 2));
}
