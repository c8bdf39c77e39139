//! Mutants: streams with one planted bug each. The comparison has to notice the promise that it
//! breaks.

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::driver::{Promise, check};
use super::steps::{Setup, setup, steps};
use super::subject::{Input, Real, Replay, Reply, Subject, TakenBatch, View};
use crate::stream::{ClientResponse, Effect};

/// Number of random cases, far more than any mutant needs.
const CASES: usize = 3000;

/// Returns the number of random cases before `S` was seen to break `promise`. Other promises may
/// break before.
fn caught<S: Subject>(promise: Promise) -> Option<usize> {
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let case = (setup(), steps());
    (0..CASES).find(|_| {
        let (setup, steps) = case.new_tree(&mut runner).expect("nothing is filtered").current();
        check::<S>(&setup, &steps).is_err_and(|violation| violation.promise == promise)
    })
}

macro_rules! mutants {
    ($($(#[doc = $doc:literal])+ $promise:expr => $name:ident, $test:ident { $($body:tt)* })+) => {$(
        $(#[doc = $doc])+
        struct $name(Real);

        impl Subject for $name {
            fn wrap(real: Real) -> Self {
                Self(real)
            }

            fn real(&self) -> &Real {
                &self.0
            }

            fn real_mut(&mut self) -> &mut Real {
                &mut self.0
            }

            $($body)*
        }

        #[test]
        fn $test() {
            assert!(caught::<$name>($promise).is_some(), concat!(stringify!($name), " was not noticed"));
        }
    )+};
}

use Promise::{Invariant, Replies, Timers};

mutants! {
    /// Leaves a number out when two events come together.
    Invariant(1) => SkipsANumber, one_a_gap_in_the_numbers_is_noticed {
        fn take_batch(&mut self, _: u64) -> Option<TakenBatch> {
            let taken = self.0.take_batch()?;
            Some(TakenBatch { first: taken.first + u64::from(taken.events.len() > 1), ..taken })
        }
    }

    /// Gives every event from the third on the same number.
    Invariant(1) => StopsCounting, one_a_number_given_twice_is_noticed {
        fn replay(&self, cursor: u64) -> Replay {
            renumbered(self.0.replay(cursor), |seq| seq.min(3))
        }

        fn view(&self) -> View {
            let view = self.0.view();
            View { tail: view.tail.min(3), ..view }
        }
    }

    /// Makes a batch readable as soon as the store has been given it.
    Invariant(2) => DeliversBeforeStored, two_delivery_before_the_store_is_noticed {
        fn take_batch(&mut self, at: u64) -> Option<TakenBatch> {
            let taken = self.0.take_batch();
            self.0.accept(at);
            taken
        }
    }

    /// Repeats the event at the cursor.
    Invariant(3) => RepeatsTheCursor, three_a_repeated_event_is_noticed {
        fn replay(&self, cursor: u64) -> Replay {
            match self.0.replay(cursor) {
                Replay::Events(_) if cursor > 0 => self.0.replay(cursor - 1),
                other => other,
            }
        }
    }

    /// Skips the first event after the cursor.
    Invariant(3) => SkipsAnEvent, three_a_skipped_event_is_noticed {
        fn replay(&self, cursor: u64) -> Replay {
            match self.0.replay(cursor) {
                Replay::Events(events) => Replay::Events(events.into_iter().skip(1).collect()),
                other => other,
            }
        }
    }

    /// Accepts a cursor before the trimmed events, and hides the gap.
    Invariant(3) => HidesAGap, three_a_silent_gap_is_noticed {
        fn replay(&self, cursor: u64) -> Replay {
            match self.0.replay(cursor) {
                Replay::Lost if cursor < self.0.machine.numbering().trimmed().0 => self.0.replay(self.0.machine.numbering().trimmed().0),
                other => other,
            }
        }
    }

    /// Changes the bytes of an event when it is replayed again.
    Invariant(3) => ReplaysOtherBytes, three_other_bytes_are_noticed {
        fn replay(&self, cursor: u64) -> Replay {
            match self.0.replay(cursor) {
                Replay::Events(mut events) if cursor > 0 => {
                    events.iter_mut().for_each(|(_, bytes)| bytes.truncate(9));
                    Replay::Events(events)
                }
                other => other,
            }
        }
    }

    /// Drops the last event with the seal.
    Invariant(4) => LosesTheResponseOnSeal, four_a_response_lost_with_the_seal_is_noticed {
        fn replay(&self, cursor: u64) -> Replay {
            let sealed = self.0.machine.lifecycle().is_sealed();
            without(self.0.replay(cursor), |seq, bytes| sealed && seq == self.0.machine.numbering().tail().0 && is_response(bytes))
        }
    }

    /// Drops a response that came while no connection was attached.
    Invariant(4) => LosesTheUnattendedResponse, four_a_response_lost_without_a_reader_is_noticed {
        fn replay(&self, cursor: u64) -> Replay {
            let away = !self.0.machine.reader().is_attached();
            without(self.0.replay(cursor), |_, bytes| away && is_response(bytes))
        }
    }

    /// Serves a displaced connection too.
    Invariant(5) => LetsTwoRead, five_two_readers_are_noticed {
        fn reads(&self, _: u64) -> bool {
            true
        }
    }

    /// Sends readers that displace each other the same `retry` for ever.
    Invariant(5) => NeverBacksOff, five_a_constant_retry_of_displaced_readers_is_noticed {
        fn takeover_retry(&self) -> u64 {
            self.0.machine.policy().retry.as_millis() as u64
        }
    }

    /// Ends the call when its client leaves.
    Invariant(6) => EndsWithTheClient, six_a_disconnect_that_seals_is_noticed {
        fn handle(&mut self, input: &Input, at: u64) -> Reply {
            if let Input::Detach(attach) = input && self.reads(*attach) {
                self.0.handle(&Input::Expire, at);
            }
            self.0.handle(input, at)
        }
    }

    /// Takes the end of a displaced connection for the reader's.
    Invariant(6) => MistakesWhoLeft, six_an_older_connection_that_detaches_the_reader_is_noticed {
        fn handle(&mut self, input: &Input, at: u64) -> Reply {
            let reader = (1..100).find(|attach| self.reads(*attach));
            match (input, reader) {
                (Input::Detach(_), Some(reader)) => self.0.handle(&Input::Detach(reader), at),
                _ => self.0.handle(input, at),
            }
        }
    }

    /// Owes a response to the first request of an array only.
    Invariant(7) => ForgetsTheSecondRequest, seven_a_missing_error_for_the_second_request_is_noticed {
        fn begin(setup: &Setup) -> Self {
            Self(Real::new(setup, setup.request_ids().into_iter().take(1).collect()))
        }
    }

    /// Takes the upstream's end for the end of the call, with or without a response.
    Invariant(7) => EndsWithoutAnError, seven_an_end_without_a_response_is_noticed {
        fn handle(&mut self, input: &Input, at: u64) -> Reply {
            if let Input::End(_) | Input::Fail(_) = input {
                let due: Vec<_> = self.real().machine.owed_responses().due().cloned().collect();
                for id in due {
                    self.0.handle(&Input::Cancel(id), at);
                }
            }
            self.0.handle(input, at)
        }
    }

    /// Owes an error to a cancelled request.
    Invariant(7) => AnswersTheCancelled, seven_an_answer_to_a_cancelled_request_is_noticed {
        fn handle(&mut self, input: &Input, at: u64) -> Reply {
            match input {
                Input::Cancel(id) => Reply::Bool(self.0.machine.owed_responses().due().any(|due| due == id)),
                _ => self.0.handle(input, at),
            }
        }
    }

    /// Does not close the upstream call with the stream.
    Invariant(7) => LeavesTheCallOpen, seven_a_call_left_open_is_noticed {
        fn effects(&mut self) -> Vec<Effect> {
            let machine = &mut self.0.machine;
            std::iter::from_fn(|| machine.lifecycle_mut().poll_effect()).filter(|effect| *effect != Effect::Close).collect()
        }
    }

    /// Repeats a settled server→client request.
    Invariant(8) => ReplaysTheAnswered, eight_a_replayed_answered_request_is_noticed {
        fn replay(&self, cursor: u64) -> Replay {
            match self.0.replay(cursor) {
                Replay::Events(_) => Replay::Events(
                    self.0.tail.events_after(crate::ids::Seq(cursor))
                        .take_while(|(seq, _)| *seq <= self.0.machine.numbering().tail())
                        .map(|(seq, bytes)| (seq.0, bytes.to_vec()))
                        .collect(),
                ),
                other => other,
            }
        }
    }

    /// Forwards every client response as if it were the first.
    Invariant(8) => ForwardsEveryAnswer, eight_a_second_answer_forwarded_is_noticed {
        fn handle(&mut self, input: &Input, at: u64) -> Reply {
            match self.0.handle(input, at) {
                Reply::ClientResponse(ClientResponse::Duplicate) => Reply::ClientResponse(ClientResponse::First),
                other => other,
            }
        }
    }

    /// Lets the timer of a detached stream run while a connection reads.
    Timers => AbandonsTheAttended, a_detached_timer_that_runs_while_attached_is_noticed {
        fn view(&self) -> View {
            let (view, machine) = (self.0.view(), &self.0.machine);
            let wait = machine.policy().max_wait.filter(|_| view.attached && !machine.lifecycle().is_sealed());
            let until = wait.map(|wait| self.0.millis(machine.reader().since() + wait));
            View { deadline: view.deadline.into_iter().chain(until).min(), ..view }
        }
    }

    /// Computes the grace period from the configured `retry`, not from the last sent value.
    Timers => ForgetsTheSentRetry, a_grace_that_ignores_the_sent_retry_is_noticed {
        fn handle(&mut self, input: &Input, at: u64) -> Reply {
            let configured = self.0.machine.policy().retry.as_millis() as u64;
            match input {
                Input::Primed(_) => self.0.handle(&Input::Primed(configured), at),
                _ => self.0.handle(input, at),
            }
        }
    }

    /// Counts retention from the seal, not from the last reader.
    Timers => ForgetsTheLastReader, a_retention_that_ignores_the_last_reader_is_noticed {
        fn view(&self) -> View {
            let view = self.0.view();
            let sealed = match view.stage {
                super::subject::Stage::Sealed(_, at) => Some(at + 900),
                _ => view.readable_until,
            };
            View { readable_until: view.readable_until.and(sealed), ..view }
        }
    }
}

mutants! {
    /// Begins the client's turn before the client has every event.
    Replies => TurnsTooEarly, a_turn_before_the_client_has_everything_is_noticed {
        fn handle(&mut self, input: &Input, at: u64) -> Reply {
            match input {
                Input::Turn(_) => self.0.handle(&Input::Turn(self.0.machine.numbering().tail().0), at),
                _ => self.0.handle(input, at),
            }
        }
    }
}

/// Plants a delay of one millisecond in each timer.
macro_rules! late_timers {
    ($($name:ident, $test:ident: $late:expr;)+) => {
        mutants! {$(
            /// Fires one millisecond late.
            Timers => $name, $test {
                fn begin(setup: &Setup) -> Self {
                    let mut late = setup.clone();
                    let change: fn(&mut Setup) = $late;
                    change(&mut late);
                    Self(Real::new(&late, late.request_ids()))
                }
            }
        )+}
    };
}

late_timers! {
    LateMaxWait, a_late_max_wait_is_noticed: |setup| setup.max_wait = setup.max_wait.map(|wait| wait + 1);
    LateGrace, a_late_grace_is_noticed: |setup| setup.modern_grace = setup.modern_grace.map(|grace| grace + 1);
    LateUnprimedGrace, a_late_grace_without_an_id_is_noticed: |setup| setup.unprimed_grace += 1;
    LateDefaultGrace, a_grace_by_the_wrong_retry_is_noticed: |setup| setup.retry += 1;
    LateRetention, a_late_retention_is_noticed: |setup| setup.retention += 1;
    LateCallTimeout, a_late_call_timeout_is_noticed: |setup| setup.call_timeout = setup.call_timeout.map(|after| after + 1);
    LateCancelGrace, a_late_cancel_grace_is_noticed: |setup| setup.cancel_grace += 1;
    LateFullWait, a_late_full_wait_is_noticed: |setup| setup.full_wait += 1;
    LateTurn, a_late_turn_is_noticed: |setup| setup.input_grace += 1;
    LateLinger, a_late_linger_is_noticed: |setup| setup.linger += 1;
    LateCommit, a_late_commit_is_noticed: |setup| setup.commit_after = setup.commit_after.map(|after| after + 1);
}

fn is_response(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    text.contains(r#""result""#) || text.contains(r#""error""#)
}

fn without(replay: Replay, gone: impl Fn(u64, &[u8]) -> bool) -> Replay {
    match replay {
        Replay::Events(events) => {
            Replay::Events(events.into_iter().filter(|(seq, bytes)| !gone(*seq, bytes)).collect())
        }
        other => other,
    }
}

fn renumbered(replay: Replay, number: impl Fn(u64) -> u64) -> Replay {
    match replay {
        Replay::Events(events) => Replay::Events(events.into_iter().map(|(seq, bytes)| (number(seq), bytes)).collect()),
        other => other,
    }
}
