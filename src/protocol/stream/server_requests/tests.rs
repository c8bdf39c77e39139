use proptest::prelude::*;

use super::*;
use crate::clock;
use crate::protocol::jsonrpc::counted::comparisons;

fn id(number: usize) -> RequestId {
    RequestId::Number(number.to_string().into())
}

/// What was asked, as a list that is searched.
#[derive(Default)]
struct List(Vec<(usize, u64, bool, bool)>);

impl List {
    fn answer(&mut self, number: usize) -> Answer {
        let mut outcome = Answer::Unknown;
        for (_, _, _, answered) in self.0.iter_mut().filter(|ask| ask.0 == number) {
            if !*answered {
                *answered = true;
                return Answer::First;
            }
            outcome = Answer::Again;
        }
        outcome
    }

    fn is_spent(&self, seq: u64) -> bool {
        let mut here = self.0.iter().filter(|ask| ask.1 == seq).peekable();
        here.peek().is_some() && here.all(|ask| ask.2 && ask.3)
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// One event with these requests, and with other messages or not.
    Ask(Vec<usize>, bool),
    Answer(usize),
    Unanswer(usize),
    Restore,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (prop::collection::vec(0usize..6, 1..4), prop::bool::weighted(0.8)).prop_map(|(ids, alone)| Step::Ask(ids, alone)),
        8 => (0usize..7).prop_map(Step::Answer),
        2 => (0usize..7).prop_map(Step::Unanswer),
        1 => Just(Step::Restore),
    ]
}

proptest! {
    #[test]
    fn agrees_with_a_list(steps in prop::collection::vec(step(), 0..60)) {
        let (mut asks, mut list, mut seq) = (Asks::default(), List::default(), 0);
        for step in steps {
            match step {
                Step::Ask(numbers, alone) => {
                    seq += 1;
                    for number in numbers {
                        asks.ask(id(number), Seq(seq), alone, clock::now());
                        list.0.push((number, seq, alone, false));
                    }
                }
                Step::Answer(number) => prop_assert_eq!(asks.answer(&id(number)), list.answer(number)),
                Step::Unanswer(number) => {
                    asks.unanswer(&id(number));
                    let last = list.0.iter_mut().rev().find(|ask| ask.0 == number && ask.3);
                    last.into_iter().for_each(|ask| ask.3 = false);
                }
                Step::Restore => {
                    let (parts, spent) = asks.to_parts();
                    asks.restore(parts, spent, clock::now());
                }
            }
            for number in 0..7 {
                let mut of_id = list.0.iter().filter(|ask| ask.0 == number);
                prop_assert_eq!(asks.knows(&id(number)), of_id.clone().next().is_some());
                prop_assert_eq!(asks.outstanding_since(&id(number)).is_some(), of_id.clone().any(|ask| !ask.3));
                prop_assert_eq!(asks.has_answered(&id(number)), of_id.clone().next().is_some() && of_id.all(|ask| ask.3));
            }
            prop_assert_eq!(asks.has_outstanding(), list.0.iter().any(|ask| !ask.3));
            for after in 0..=seq {
                prop_assert_eq!(asks.is_answered(Seq(after)), list.is_spent(after));
                let spent = (after + 1..=seq).filter(|seq| list.is_spent(*seq)).count();
                prop_assert_eq!(asks.spent_between(Seq(after), Seq(seq)), spent as u64);
                prop_assert_eq!(asks.has_outstanding_after(Seq(after)), list.0.iter().any(|ask| !ask.3 && ask.1 > after));
            }
        }
    }
}

/// So many pings, each answered before the next, or not at all; and the comparisons for the last thousand.
fn pinged(times: usize, answers: bool) -> (Asks, usize) {
    let mut asks = Asks::default();
    let ping = |asks: &mut Asks, number: usize| {
        asks.ask(id(number), Seq(number as u64), true, clock::now());
        if answers {
            assert_eq!(asks.answer(&id(number)), Answer::First);
        }
        let seq = Seq(number as u64);
        assert_eq!(asks.is_answered(seq), answers);
    };
    (1..=times - 1000).for_each(|number| ping(&mut asks, number));
    let last = comparisons(|| (times - 999..=times).for_each(|number| ping(&mut asks, number)));
    (asks, last)
}

#[test]
fn what_is_remembered_of_pings_is_bounded_and_so_is_the_work_for_one() {
    for answers in [true, false] {
        let (_, early) = pinged(2000, answers);
        let (asks, late) = pinged(100_000, answers);
        assert!(asks.byte_len() <= REMEMBERED_BYTES, "{} bytes", asks.byte_len());
        assert!(asks.to_parts().0.len() < 2000);
        assert!(late <= early + early / 2 + 1000, "{early} comparisons for early pings and {late} for late ones");
    }
}

#[test]
fn what_was_answered_is_not_replayed_after_it_was_forgotten() {
    let (mut asks, _) = pinged(50_000, true);
    assert!(!asks.knows(&id(1)));
    assert_eq!(asks.spent_between(Seq(0), Seq(50_000)), 50_000);
    // Its server may judge another answer; to one of the last it is not given.
    assert_eq!(asks.answer(&id(1)), Answer::Unknown);
    assert_eq!(asks.answer(&id(49_500)), Answer::Again);
    // Another process knows as much.
    let (parts, spent) = asks.to_parts();
    let mut elsewhere = Asks::default();
    elsewhere.restore(parts, spent, clock::now());
    assert_eq!(elsewhere.spent_between(Seq(0), Seq(50_000)), 50_000);
    // What the log has dropped is not kept here.
    asks.handle_trimmed(Seq(49_000));
    assert_eq!(asks.spent_between(Seq(49_000), Seq(50_000)), 1000);
}

#[test]
fn what_waits_is_forgotten_last() {
    let mut asks = Asks::default();
    asks.ask(id(0), Seq(1), true, clock::now());
    for number in 1..5000 {
        asks.ask(id(number), Seq(1 + number as u64), true, clock::now());
        asks.answer(&id(number));
    }
    assert_eq!(asks.answer(&id(0)), Answer::First);
    assert!(asks.is_answered(Seq(1)));
}

#[test]
fn an_event_with_a_question_that_was_forgotten_unanswered_is_replayed() {
    let mut asks = Asks::default();
    let many = REMEMBERED_BYTES / ASK_COST;
    (0..many + 5).for_each(|number| asks.ask(id(number), Seq(1), true, clock::now()));
    assert_eq!(asks.answer(&id(0)), Answer::Unknown);
    (0..many + 5).for_each(|number| _ = asks.answer(&id(number)));
    assert!(!asks.has_outstanding() && !asks.is_answered(Seq(1)));
}

#[test]
fn a_huge_id_costs_the_others_nothing() {
    let mut asks = Asks::default();
    let huge = RequestId::String("x".repeat(1 << 20).into());
    asks.ask(id(1), Seq(1), true, clock::now());
    asks.ask(huge.clone(), Seq(2), true, clock::now());
    asks.ask(id(2), Seq(2), true, clock::now());
    assert!(asks.byte_len() < 1024);
    assert_eq!(asks.answer(&huge), Answer::Unknown);
    assert_eq!((asks.answer(&id(1)), asks.answer(&id(2))), (Answer::First, Answer::First));
    assert!(asks.is_answered(Seq(1)) && !asks.is_answered(Seq(2)));
}
