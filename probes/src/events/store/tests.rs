//! Unit tests of the event store.

use exoprobe_guest::{GuestClock, Gva};
use exoprobe_introspect::TaskId;

use super::super::look::field_value;
use super::super::origin::Origin;
use super::super::ring::{Record, TextPlace};
use super::*;
use crate::definition::{Argument, Fetch, Field, FieldValue, ValueType, Width};

fn field(name: &str) -> Argument {
    let kind = match name {
        "c" => ValueType::Text,
        "d" => ValueType::Signed(Width::Double),
        _ => ValueType::default(),
    };
    Argument { name: name.to_owned(), fetch: Fetch::StackPointer, kind, count: None }
}

fn hits(count: usize) -> impl Iterator<Item = Hit> {
    let origin = Arc::new(Origin {
        group: "kprobes".into(),
        event: "e".into(),
        event_id: 1,
        synthetic: None,
        user_texts: Arc::default(),
        symbol_name: None,
        offset: 0,
        at: Gva(0x10),
        addr: "0x10".into(),
        fields: ["a", "b", "c", "d"].map(field).into(),
        symbols: None,
        clock: GuestClock::default(),
    });
    let record = |number: u64| Record {
        probe: 1,
        time: 0,
        task: None,
        returned: None,
        args: vec![Some(number), None, Some(TextPlace::new(1, 2).unwrap().word()), Some(u64::MAX)],
        stack: Vec::new(),
        text: b"atext".as_slice().into(),
    };
    (1..).take(count).map(move |number| {
        let origin = Arc::clone(&origin);
        Hit { origin, vcpu: 0, record: record(number) }
    })
}

#[test]
fn a_reader_that_falls_behind_is_told_what_it_lost() {
    let store = EventStore::new(EventLimits { count: 4, ..EventLimits::default() });
    assert_eq!(store.append(hits(10).map(Step::Keep)), 10);
    assert_eq!(store.append(std::iter::empty()), 0);
    let page = store.read(1, 100);
    assert_eq!(page.lost, 6);
    assert_eq!(page.events.iter().map(|e| e.seq).collect::<Vec<_>>(), [7, 8, 9, 10]);
    let args: Vec<String> = page.events.iter().map(|e| format!("{:?}", e.args)).collect();
    let expected =
        r#"{"a": String("0xa"), "b": String("(fault)"), "c": String("te"), "d": Number(-1)}"#;
    assert_eq!(args[3], expected);
    assert_eq!(page.next, 11);
    let resumed = store.read(9, 1);
    assert_eq!((resumed.lost, resumed.events[0].seq, resumed.next), (0, 9, 10));
    assert_eq!(store.read(11, 5).events.len(), 0);
    assert_eq!(store.read(u64::MAX, 5).next, 11, "the future starts with the next event");
    assert_eq!(*store.latest().borrow(), 10);
}

fn keep(store: &EventStore, count: usize) {
    store.append(hits(count).map(Step::Keep));
}

#[test]
fn selected_events_are_pages_without_the_others() {
    let store = EventStore::new(EventLimits { count: 10, ..EventLimits::default() });
    // Of task 1, 2, 3, 1, 2, 3, ...
    let of_task = |(number, mut hit): (u32, Hit)| {
        hit.record.task = Some(TaskId { pid: 1 + number % 3, comm: *b"some_task\0\0\0\0\0\0\0" });
        Step::Keep(hit)
    };
    store.append((0..).zip(hits(12)).map(of_task));
    let selection = EventSelection { pid: Some(2), ..EventSelection::default() };
    let numbers = |page: &EventPage| page.events.iter().map(|e| e.seq).collect::<Vec<_>>();
    let page = store.read_selected(1, 2, &selection);
    assert_eq!((numbers(&page), page.start, page.next, page.lost), (vec![5, 8], 3, 9, 2));
    let rest = store.read_selected(page.next, 2, &selection);
    assert_eq!((numbers(&rest), rest.next, rest.lost), (vec![11], 13, 0));
    assert_eq!(store.start_of_last(2, &selection), 8);
    assert_eq!((store.start_of_last(99, &selection), store.start_of_last(0, &selection)), (3, 13));
    let none = EventSelection { comm: Some("other*".to_owned()), ..EventSelection::default() };
    assert_eq!(store.read_selected(1, 5, &none).next, 13);
    let comm = EventSelection { comm: Some("some*".to_owned()), ..EventSelection::default() };
    assert_eq!(store.read_selected(1, 99, &comm).events.len(), 10);
}

#[test]
fn events_are_bounded_in_bytes_and_the_oldest_go() {
    let bytes = 64 << 10;
    let store = EventStore::new(EventLimits { bytes, ..EventLimits::default() });
    let large = |mut hit: Hit| {
        hit.record.text = vec![b'x'; 1000].into();
        Step::Keep(hit)
    };
    store.append(hits(500).map(large));
    let page = store.read(1, 1000);
    let kept = page.events.len();
    assert!((40..=64).contains(&kept), "{kept} of more than 1,000 bytes");
    assert_eq!((page.lost, page.next), (500 - kept as u64, 501));
    // Each hit of another probe: the shared part of a probe's events counts as well.
    let stranger = |number: usize| {
        let mut hit = hits(1).next().unwrap();
        let fields = vec![field("a"); number];
        Arc::get_mut(&mut hit.origin).unwrap().fields = fields.into();
        Step::Keep(hit)
    };
    store.append((0..500).map(|_| stranger(50)));
    assert!(store.read(1, 1000).events.len() < 20);
    store.append(hits(500).map(Step::Keep));
    let small = store.read(1, 1000).events.len();
    assert!(small > 64, "room is used again: {small}");
    // One that is larger than all is kept, alone.
    let huge = |mut hit: Hit| {
        hit.record.text = vec![b'x'; bytes].into();
        Step::Keep(hit)
    };
    store.append(hits(1).map(huge));
    assert_eq!(store.read(1, 1000).events.len(), 1);
}

#[test]
fn a_page_ends_by_bytes_and_by_number() {
    let store = EventStore::new(EventLimits::default());
    keep(&store, 100);
    let all = EventSelection::default();
    let part = |from, bounds| store.read_part(from, bounds, &all);
    let page = part(1, Bounds { bytes: 1, ..Bounds::default() });
    assert_eq!((page.events.len(), page.next), (1, 2), "one at least");
    let page = part(10, Bounds { end: 15, ..Bounds::default() });
    assert_eq!((page.events.len(), page.next), (5, 15));
    assert_eq!((store.end_of(1, 7, &all), store.end_of(1, 1000, &all)), (8, 101));
    assert_eq!(store.end_of(5, 0, &all), 5);
}

#[test]
fn cleared_events_are_not_lost_ones() {
    let store = EventStore::new(EventLimits { count: 4, ..EventLimits::default() });
    keep(&store, 6);
    store.clear();
    let page = store.read(1, 9);
    assert_eq!((page.events.len(), page.start, page.next, page.lost), (0, 7, 7, 0));
    assert_eq!(trace(&store), (0, 0, 0));
    keep(&store, 6);
    let page = store.read(1, 9);
    assert_eq!((page.events.len(), page.start, page.lost), (4, 9, 2));
}

/// Events, events written, and runs that are lost.
fn shown(page: &TracePage) -> (usize, u64, usize) {
    let lost = page.runs().filter(|(lost, _)| *lost > 0).count();
    let events: usize = page.runs().map(|(_, events)| events.count()).sum();
    assert_eq!(page.events(), events as u64);
    (events, page.written(), lost)
}

/// The same of the file `trace`, as its readers see it.
fn trace(store: &EventStore) -> (usize, u64, usize) {
    let mut reader = store.open_trace();
    let parts = std::iter::from_fn(|| store.next_part(&mut reader));
    let (events, lost) = parts.fold((0, 0), |sum, page| {
        let (events, _, lost) = shown(&page);
        (sum.0 + events, sum.1 + lost)
    });
    assert_eq!(reader.events, events as u64);
    (events, reader.written, lost)
}

#[test]
fn the_trace_shows_what_came_while_it_was_on() {
    let store = EventStore::new(EventLimits { count: 16, ..EventLimits::default() });
    keep(&store, 2);
    store.set_tracing(false);
    keep(&store, 5);
    store.set_tracing(true);
    keep(&store, 3);
    assert!(store.is_tracing());
    assert_eq!(trace(&store), (5, 5, 0));
    assert_eq!(shown(&store.take_trace(3, None)), (3, 0, 0));
    assert_eq!(trace(&store), (2, 5, 0));
    assert_eq!(shown(&store.take_trace(9, None)), (2, 0, 0));
    assert_eq!(shown(&store.take_trace(9, None)), (0, 0, 0));
    keep(&store, 20);
    assert_eq!(trace(&store), (16, 5 + 20, 1), "four are lost");
    store.clear_trace();
    assert_eq!(trace(&store), (0, 0, 0));
    assert_eq!(store.read(1, 100).events.len(), 16, "other readers have theirs");
}

#[test]
fn a_snapshot_has_the_trace_and_the_trace_begins_anew() {
    let store = EventStore::new(EventLimits { count: 4, ..EventLimits::default() });
    assert!(store.snapshot().is_none());
    let control = |control| std::iter::once(Step::Control(control));
    let hit = |count| hits(count).map(Step::Keep);
    let steps = hit(3).chain(control(Control::Snapshot)).chain(hit(2));
    assert_eq!(store.append(steps.chain(control(Control::Off)).chain(hit(1))), 6);
    assert!(!store.is_tracing());
    assert_eq!(shown(&store.snapshot().unwrap()), (3, 3, 0));
    assert_eq!(trace(&store), (2, 2, 0));
    store.append(control(Control::On).chain(hit(9)));
    assert_eq!(shown(&store.snapshot().unwrap()), (3, 3, 0), "it stays as it was");
    store.take_snapshot();
    assert_eq!(trace(&store), (0, 0, 0));
    store.free_snapshot();
    assert!(store.snapshot().is_none());
}

/// Hits of vCPUs 0, 1, 0, 1, ..., each with its number.
fn of_two_vcpus(count: usize) -> impl Iterator<Item = Step> {
    let alternating = |(number, hit): (usize, Hit)| {
        Step::Keep(Hit { vcpu: u8::try_from(number % 2).unwrap(), ..hit })
    };
    hits(count).enumerate().map(alternating)
}

/// The numbers of a page's hits, and how many were lost.
fn numbers(page: &TracePage) -> (Vec<u64>, u64) {
    let hits = page.runs.iter().flat_map(|(_, hits)| hits);
    (hits.map(|hit| hit.record.args[0].unwrap()).collect(), page.lost())
}

/// What `trace` shows, by a reader.
fn listed(store: &EventStore) -> (Vec<u64>, u64) {
    let mut reader = store.open_trace();
    let pages = std::iter::from_fn(|| store.next_part(&mut reader));
    let (mut all, mut lost) = (Vec::new(), 0);
    for (numbers, of_page) in pages.map(|page| numbers(&page)) {
        all.extend(numbers);
        lost += of_page;
    }
    (all, lost)
}

#[test]
fn readers_of_one_vcpu_take_its_events_from_all_others() {
    let store = EventStore::new(EventLimits::default());
    store.append(of_two_vcpus(10));
    assert_eq!(numbers(&store.trace_of_cpu(1)), (vec![2, 4, 6, 8, 10], 0));
    assert_eq!(numbers(&store.take_trace(2, Some(1))), (vec![2, 4], 0));
    assert_eq!(numbers(&store.take_trace(1, Some(0))), (vec![1], 0));
    assert_eq!(listed(&store), (vec![3, 5, 6, 7, 8, 9, 10], 0));
    assert_eq!(numbers(&store.take_trace(2, None)), (vec![3, 5], 0));
    assert_eq!(numbers(&store.take_trace(1, Some(1))), (vec![6], 0));
    assert_eq!(numbers(&store.take_trace(9, Some(0))), (vec![7, 9], 0));
    assert_eq!(numbers(&store.take_trace(9, None)), (vec![8, 10], 0));
    assert_eq!(store.open_trace().written, 10);
    assert_eq!(store.cpu_statistics(0).read, 5);
    assert_eq!(store.cpu_statistics(7), CpuStatistics::default());
}

#[test]
fn what_the_store_drops_is_counted_by_vcpu_unless_it_was_taken() {
    let store = EventStore::new(EventLimits { count: 6, ..EventLimits::default() });
    store.append(of_two_vcpus(6));
    assert_eq!(numbers(&store.take_trace(1, Some(0))), (vec![1], 0));
    // 1 to 4 go.
    store.append(of_two_vcpus(4));
    let statistics = |cpu| {
        let CpuStatistics { entries, overrun, read, bytes, .. } = store.cpu_statistics(cpu);
        assert_eq!(bytes > 0, entries > 0);
        (entries, overrun, read)
    };
    assert_eq!([statistics(0), statistics(1)], [(3, 1, 1), (3, 2, 0)]);
    assert_eq!(listed(&store), (vec![5, 6, 1, 2, 3, 4], 3));
    assert_eq!(numbers(&store.trace_of_cpu(1)), (vec![6, 2, 4], 2));
    assert_eq!(store.trace_of_cpu(1).written(), 5);
    assert_eq!(numbers(&store.take_trace(2, Some(1))), (vec![6, 2], 2));
    assert_eq!(numbers(&store.take_trace(9, None)), (vec![5, 1, 3, 4], 1), "one of vCPU 0");
    assert_eq!(store.open_trace().written, 10);
    store.append(of_two_vcpus(4));
    store.set_tracing(false);
    store.append(of_two_vcpus(10));
    assert_eq!([statistics(0), statistics(1)], [(0, 3, 4), (0, 4, 3)], "those off count not");
    store.clear_trace_of_cpu(0);
    assert_eq!([statistics(0), statistics(1)], [(0, 0, 0), (0, 4, 3)]);
    store.clear_trace();
    assert_eq!(statistics(1), (0, 0, 0));
}

#[test]
fn one_vcpus_events_are_cleared_alone() {
    let store = EventStore::new(EventLimits::default());
    store.append(of_two_vcpus(4));
    store.clear_trace_of_cpu(1);
    store.append(of_two_vcpus(4));
    assert_eq!(listed(&store), (vec![1, 3, 1, 2, 3, 4], 0));
    assert_eq!(numbers(&store.trace_of_cpu(1)), (vec![2, 4], 0));
    assert_eq!(store.read(1, 99).events.len(), 8, "other readers have them");
}

#[test]
fn the_memory_is_set_within_its_limit() {
    let bytes = 64 << 10;
    let store = EventStore::new(EventLimits { bytes, ..EventLimits::default() });
    keep(&store, 100);
    assert_eq!((store.memory(), store.memory_max()), (bytes, bytes));
    assert!(!store.set_memory(bytes + 1));
    assert!(store.set_memory(4 << 10));
    let left = listed(&store).0.len();
    assert!((5..40).contains(&left), "{left}");
    assert_eq!(store.cpu_statistics(0).overrun, 100 - left as u64);
    assert!(store.set_memory(bytes));
    keep(&store, 100);
    assert_eq!(listed(&store).0.len(), left + 100);
}

/// A filter has the same bytes as at the hit, whatever they are.
#[test]
fn a_filter_sees_a_recorded_text_as_the_guest_has_it() {
    let mut hit = hits(1).next().unwrap();
    hit.record.text = b"a\xff\xfext".as_slice().into();
    let found = field_value(Field::Text { index: 2 }, &hit);
    assert_eq!(found, Some(FieldValue::Text(vec![0xff, 0xfe])));
    hit.record.args[2] = None;
    assert_eq!(field_value(Field::Text { index: 2 }, &hit), None);
}
