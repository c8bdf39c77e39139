use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

/// Returns a batch of `events` numbered from `tail` on.
fn batch(tail: Seq, events: &[Vec<u8>]) -> Batch {
    let mut batch = Batch::starting_at(Seq(tail.0 + 1));
    for event in events {
        batch.push(b"", event);
    }
    batch
}

fn encoded(events: &[Vec<u8>]) -> Vec<Vec<u8>> {
    batch(Seq(0), events).events().map(<[u8]>::to_vec).collect()
}

/// Returns the memory of the segments, counted one by one.
fn counted(tail: &Tail) -> usize {
    tail.segments.iter().map(Segment::size).sum()
}

#[derive(Clone, Debug)]
enum Step {
    Append { events: Vec<Vec<u8>>, is_owned: bool },
    Trim(u8),
    TrimToFit { bytes: usize, events: usize, upto: u8 },
    TrimToFree { bytes: usize, upto: u8 },
    Seal,
}

fn step() -> impl Strategy<Value = Step> {
    let size = prop_oneof![6 => 0..300usize, 2 => 300..3000usize, 1 => 8000..20_000usize];
    let event = (size, any::<u8>()).prop_map(|(size, byte)| vec![b'a' + byte % 26; size]);
    prop_oneof![
        10 => (prop::collection::vec(event, 0..8), any::<bool>()).prop_map(|(events, is_owned)| Step::Append { events, is_owned }),
        2 => any::<u8>().prop_map(Step::Trim),
        2 => (0..40_000usize, 0..30usize, any::<u8>()).prop_map(|(bytes, events, upto)| Step::TrimToFit { bytes, events, upto }),
        2 => (0..40_000usize, any::<u8>()).prop_map(|(bytes, upto)| Step::TrimToFree { bytes, upto }),
        1 => Just(Step::Seal),
    ]
}

/// The events in memory, and the number of the last event before them.
#[derive(Default)]
struct Kept {
    events: VecDeque<Vec<u8>>,
    before: u64,
    sealed: bool,
}

impl Kept {
    fn last(&self) -> u64 {
        self.before + self.events.len() as u64
    }

    fn fits(&self, bytes: usize, events: usize) -> bool {
        self.events.iter().map(Vec::len).sum::<usize>() <= bytes && self.events.len() <= events
    }

    fn trim(&mut self, upto: u64) {
        while self.before < upto && self.events.pop_front().is_some() {
            self.before += 1;
        }
    }
}

fn take(tail: &mut Tail, kept: &mut Kept, step: &Step) {
    let share = |share: u8| kept.last() * u64::from(share) / 255;
    match step {
        Step::Append { events, is_owned } => {
            let (after, batch) = (tail.last(), batch(tail.last(), events));
            let appended = match is_owned {
                true => tail.append_owned(WriterEpoch(0), after, batch),
                false => tail.append(WriterEpoch(0), after, &batch),
            };
            if kept.sealed {
                assert_eq!(appended, Appended::Sealed);
            } else {
                assert_eq!(appended, Appended::Ok);
                kept.events.extend(encoded(events));
            }
        }
        Step::Trim(upto) => {
            let upto = share(*upto);
            tail.trim(Seq(upto));
            kept.trim(upto);
        }
        Step::TrimToFit { bytes, events, upto } => {
            let upto = share(*upto);
            let fits = tail.trim_to_fit(*bytes, *events, Seq(upto));
            // One event at a time from the front, as long as it is needed and permitted.
            while !kept.fits(*bytes, *events) && kept.before < upto {
                kept.trim(kept.before + 1);
            }
            assert_eq!(fits, kept.fits(*bytes, *events));
        }
        Step::TrimToFree { bytes, upto } => {
            let upto = share(*upto);
            let (before, sizes) = (tail.byte_len(), tail.segments.iter().map(Segment::size).collect::<Vec<_>>());
            tail.trim_to_free(*bytes, Seq(upto));
            let freed = before - tail.byte_len();
            let last = sizes.len() - tail.segments.len();
            assert_eq!(freed, sizes[..last].iter().sum::<usize>(), "whole segments from the front");
            assert!(freed - last.checked_sub(1).map_or(0, |last| sizes[last]) < (*bytes).max(1), "no more than needed");
            let rest_may_go = tail.segments.front().is_some_and(|front| front.last().0 <= upto);
            assert!(freed >= *bytes || !rest_may_go, "no less than may go");
            assert!(tail.trimmed().0 <= upto.max(kept.before));
            kept.trim(tail.trimmed().0);
        }
        Step::Seal => {
            assert_eq!(tail.seal(WriterEpoch(0)), Appended::Ok);
            kept.sealed = true;
        }
    }
}

proptest! {
    #[test]
    fn a_tail_holds_what_a_plain_list_holds(steps in prop::collection::vec(step(), 1..40)) {
        let (mut tail, mut kept) = (Tail::new(), Kept::default());
        for step in &steps {
            take(&mut tail, &mut kept, step);
            prop_assert_eq!(tail.byte_len(), counted(&tail), "bytes are accounted for");
            prop_assert_eq!((tail.last().0, tail.trimmed().0, tail.len()), (kept.last(), kept.before, kept.events.len()));
            prop_assert_eq!(tail.is_empty(), kept.events.is_empty());
            for cursor in kept.before..=kept.last() + 1 {
                let later = tail.events_after(Seq(cursor)).map(|(seq, event)| (seq.0, event.to_vec()));
                let wanted = (kept.before + 1..).zip(kept.events.iter().cloned()).filter(|(seq, _)| *seq > cursor);
                prop_assert_eq!(later.collect::<Vec<_>>(), wanted.collect::<Vec<_>>());
            }
            for (seq, event) in (kept.before + 1..).zip(&kept.events) {
                prop_assert_eq!(tail.event(Seq(seq)), Some(event.as_slice()));
            }
            prop_assert_eq!(tail.event(Seq(kept.last() + 1)), None);
        }
    }

    #[test]
    fn a_reserved_buffer_never_grows_and_never_exceeds_its_limit(
        sizes in prop::collection::vec(1..2000usize, 1..60), cursor in 0..70u64, limit in 1..40_000usize
    ) {
        let mut tail = Tail::new();
        let events: Vec<_> = sizes.iter().map(|size| vec![b'x'; *size]).collect();
        tail.append(WriterEpoch(0), Seq(0), &batch(Seq(0), &events));
        let later: usize = tail.events_after(Seq(cursor)).map(|(_, event)| event.len()).sum();
        let reserved = tail.byte_len_after(Seq(cursor), limit);
        prop_assert!(reserved <= limit);
        prop_assert!(reserved >= later.min(limit), "{reserved} for {later}");
    }
}

/// Returns the memory per byte of event, for `count` events of 200 bytes, open and sealed.
fn overhead(count: usize) -> (f64, f64) {
    let mut tail = Tail::new();
    let data = vec![b'x'; 200 - b"data: \n\n".len()];
    for _ in 0..count {
        tail.append(WriterEpoch(0), tail.last(), &batch(tail.last(), std::slice::from_ref(&data)));
    }
    let wire = (count * 200) as f64;
    let open = tail.byte_len() as f64 / wire;
    tail.seal(WriterEpoch(0));
    (open, tail.byte_len() as f64 / wire)
}

#[test]
fn events_of_200_bytes_cost_little_more_than_their_bytes() {
    for count in [10, 100, 1000, 10_000] {
        let (open, sealed) = overhead(count);
        assert!(sealed <= 1.15, "{count} sealed events take {sealed:.3} of their bytes");
        // An open stream has at most one segment with unused capacity.
        let reserve = SEGMENT_MAX as f64 / (count as f64 * 200.0);
        assert!(open <= 1.15 + reserve, "{count} events take {open:.3} of their bytes");
    }
}

#[test]
fn an_event_larger_than_a_segment_has_one_of_its_own() {
    let mut tail = Tail::new();
    let events = [vec![b'a'; 10], vec![b'b'; 3 * SEGMENT_MAX], vec![b'c'; 10]];
    tail.append(WriterEpoch(0), Seq(0), &batch(Seq(0), &events));
    assert_eq!(tail.segments.len(), 3);
    assert!(tail.byte_len() < 4 * SEGMENT_MAX + 2 * SEGMENT_MIN, "{}", tail.byte_len());
}

#[test]
fn a_batch_is_known_again_only_byte_for_byte() {
    let mut tail = Tail::new();
    let events = encoded(&[vec![b'a'; 10], vec![b'b'; 10]]);
    assert_eq!(tail.append(WriterEpoch(0), Seq(0), &batch(Seq(0), &[vec![b'a'; 10], vec![b'b'; 10]])), Appended::Ok);
    let cases = [
        (0, vec![vec![b'a'; 10], vec![b'b'; 10]], true),
        (0, vec![vec![b'a'; 10]], true),
        (1, vec![vec![b'b'; 10]], true),
        (0, vec![vec![b'a'; 10], vec![b'c'; 10]], false),
        (0, vec![vec![b'a'; 10], vec![b'b'; 10], vec![b'c'; 10]], false),
        (3, vec![vec![b'c'; 10]], false),
    ];
    for (after, again, known) in cases {
        let wanted = if known { Appended::Ok } else { Appended::Conflict { tail: Seq(2) } };
        assert_eq!(tail.append(WriterEpoch(0), Seq(after), &batch(Seq(after), &again)), wanted, "{after} {again:?}");
        assert_eq!(tail.events_after(Seq(0)).map(|(_, event)| event.to_vec()).collect::<Vec<_>>(), events);
    }
}
