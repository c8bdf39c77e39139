use proptest::prelude::*;

use super::*;
use crate::jsonrpc::counted::comparisons;
use mcp_resume_base::clock;

fn id(number: usize) -> RequestId {
    RequestId::Number(number.to_string().into())
}

/// The requests as a list with linear searches.
#[derive(Default)]
struct List(Vec<(usize, u64, bool, bool)>);

impl List {
    fn answer(&mut self, number: usize) -> ClientResponse {
        let mut outcome = ClientResponse::Unknown;
        for (_, _, _, answered) in self.0.iter_mut().filter(|request| request.0 == number) {
            if !*answered {
                *answered = true;
                return ClientResponse::First;
            }
            outcome = ClientResponse::Duplicate;
        }
        outcome
    }

    fn is_spent(&self, seq: u64) -> bool {
        let mut here = self.0.iter().filter(|request| request.1 == seq).peekable();
        here.peek().is_some() && here.all(|request| request.2 && request.3)
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// One event with these requests; true if it holds no other messages.
    Add(Vec<usize>, bool),
    ClientResponse(usize),
    Unanswer(usize),
    Restore,
    /// The requests are packed and unpacked.
    Pack,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (prop::collection::vec(0usize..6, 1..4), prop::bool::weighted(0.8)).prop_map(|(ids, is_alone)| Step::Add(ids, is_alone)),
        8 => (0usize..7).prop_map(Step::ClientResponse),
        2 => (0usize..7).prop_map(Step::Unanswer),
        1 => Just(Step::Restore),
        1 => Just(Step::Pack),
    ]
}

proptest! {
    #[test]
    fn agrees_with_a_list(steps in prop::collection::vec(step(), 0..60)) {
        let (mut requests, mut list, mut seq) = (ServerRequests::default(), List::default(), 0);
        for step in steps {
            match step {
                Step::Add(numbers, is_alone) => {
                    seq += 1;
                    for number in numbers {
                        requests.add(id(number), Seq(seq), is_alone, clock::now());
                        list.0.push((number, seq, is_alone, false));
                    }
                }
                Step::ClientResponse(number) => prop_assert_eq!(requests.answer(&id(number)), list.answer(number)),
                Step::Unanswer(number) => {
                    requests.unsettle(&id(number));
                    let last = list.0.iter_mut().rev().find(|request| request.0 == number && request.3);
                    if let Some(request) = last {
                        request.3 = false;
                    }
                }
                Step::Restore => {
                    let (parts, spent) = requests.to_parts();
                    requests.restore(parts, spent, clock::now());
                }
                Step::Pack => {
                    let (changes, bytes) = (requests.changes(), requests.byte_len());
                    requests = PackedRequests::of(requests, Seq(0)).unpack();
                    prop_assert_eq!((requests.changes(), requests.byte_len()), (changes, bytes));
                }
            }
            for number in 0..7 {
                let mut of_id = list.0.iter().filter(|request| request.0 == number);
                prop_assert_eq!(requests.knows(&id(number)), of_id.clone().next().is_some());
                prop_assert_eq!(requests.outstanding_since(&id(number)).is_some(), of_id.clone().any(|request| !request.3));
                prop_assert_eq!(requests.has_answered(&id(number)), of_id.clone().next().is_some() && of_id.all(|request| request.3));
            }
            prop_assert_eq!(requests.has_outstanding(), list.0.iter().any(|request| !request.3));
            for after in 0..=seq {
                prop_assert_eq!(requests.is_spent(Seq(after)), list.is_spent(after));
                let spent = (after + 1..=seq).filter(|seq| list.is_spent(*seq)).count();
                prop_assert_eq!(requests.spent_between(Seq(after), Seq(seq)), spent as u64);
                prop_assert_eq!(requests.has_outstanding_after(Seq(after)), list.0.iter().any(|request| !request.3 && request.1 > after));
            }
        }
    }
}

/// Returns the requests after `times` pings, each settled before the next or not at all, and the
/// comparisons for the last thousand.
fn pinged(times: usize, answers: bool) -> (ServerRequests, usize) {
    let mut requests = ServerRequests::default();
    let ping = |requests: &mut ServerRequests, number: usize| {
        requests.add(id(number), Seq(number as u64), true, clock::now());
        if answers {
            assert_eq!(requests.answer(&id(number)), ClientResponse::First);
        }
        let seq = Seq(number as u64);
        assert_eq!(requests.is_spent(seq), answers);
    };
    (1..=times - 1000).for_each(|number| ping(&mut requests, number));
    let last = comparisons(|| (times - 999..=times).for_each(|number| ping(&mut requests, number)));
    (requests, last)
}

#[test]
fn memory_of_pings_is_bounded_and_so_is_the_work_for_each() {
    for answers in [true, false] {
        let (_, early) = pinged(2000, answers);
        let (requests, late) = pinged(100_000, answers);
        assert!(requests.byte_len() <= REMEMBERED_BYTES, "{} bytes", requests.byte_len());
        assert!(requests.to_parts().0.len() < 2000);
        assert!(late <= early + early / 2 + 1000, "{early} comparisons for early pings and {late} for late ones");
    }
}

#[test]
fn an_answered_request_is_not_replayed_after_it_was_forgotten() {
    let (mut requests, _) = pinged(50_000, true);
    assert!(!requests.knows(&id(1)));
    assert_eq!(requests.spent_between(Seq(0), Seq(50_000)), 50_000);
    // The server judges another response to a forgotten request, and gets none to a remembered one.
    assert_eq!(requests.answer(&id(1)), ClientResponse::Unknown);
    assert_eq!(requests.answer(&id(49_500)), ClientResponse::Duplicate);
    // A restored copy in another process knows as much.
    let (parts, spent) = requests.to_parts();
    let mut restored = ServerRequests::default();
    restored.restore(parts, spent, clock::now());
    assert_eq!(restored.spent_between(Seq(0), Seq(50_000)), 50_000);
    // Events that the log has dropped are not kept.
    requests.handle_trimmed(Seq(49_000));
    assert_eq!(requests.spent_between(Seq(49_000), Seq(50_000)), 1000);
}

#[test]
fn unanswered_requests_are_forgotten_last() {
    let mut requests = ServerRequests::default();
    requests.add(id(0), Seq(1), true, clock::now());
    for number in 1..5000 {
        requests.add(id(number), Seq(1 + number as u64), true, clock::now());
        requests.answer(&id(number));
    }
    assert_eq!(requests.answer(&id(0)), ClientResponse::First);
    assert!(requests.is_spent(Seq(1)));
}

#[test]
fn an_event_with_a_request_that_was_forgotten_unanswered_is_replayed() {
    let mut requests = ServerRequests::default();
    let many = REMEMBERED_BYTES / REQUEST_COST;
    (0..many + 5).for_each(|number| requests.add(id(number), Seq(1), true, clock::now()));
    assert_eq!(requests.answer(&id(0)), ClientResponse::Unknown);
    (0..many + 5).for_each(|number| _ = requests.answer(&id(number)));
    assert!(!requests.has_outstanding() && !requests.is_spent(Seq(1)));
}

#[test]
fn a_huge_id_does_not_displace_other_requests() {
    let mut requests = ServerRequests::default();
    let huge = RequestId::String("x".repeat(1 << 20).into());
    requests.add(id(1), Seq(1), true, clock::now());
    requests.add(huge.clone(), Seq(2), true, clock::now());
    requests.add(id(2), Seq(2), true, clock::now());
    assert!(requests.byte_len() < 1024);
    assert_eq!(requests.answer(&huge), ClientResponse::Unknown);
    assert_eq!((requests.answer(&id(1)), requests.answer(&id(2))), (ClientResponse::First, ClientResponse::First));
    assert!(requests.is_spent(Seq(1)) && !requests.is_spent(Seq(2)));
}
