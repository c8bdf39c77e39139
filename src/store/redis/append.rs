//! Appends: by a script, or by a plain `XADD` where the script has permitted it.
//!
//! The script checks everything, and costs Redis several times as much as the addition itself.
//! Where it can, it permits one connection, the holder, to make the next additions of the stream by
//! plain `XADD`s. These use the present key of the stream's events. A new writer, a seal, a
//! follower that must be notified or a new beginning of the stream renames that key. A stream that
//! is gone has no key. A plain addition then changes nothing, and the script makes the append.
//!
//! The holder knows the stream's tail: no other connection adds to it, and Redis accepts no number
//! twice. A plain addition needs two things. The script has accepted the caller's epoch and place
//! on this connection. No other append of the stream is in flight. If the connection breaks during
//! an append, its outcome is unknown. Redis loses single entries only in a failover or restart,
//! which breaks the connection too. A plain addition does not renew the expiry of the stream; the
//! script does, within a sixteenth of it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ::redis::{Cmd, Value};

use super::failure::{Failure, Replies, check_replies};
use super::keys::{Names, Order};
use super::words::{last_words, number};
use super::{entry, scripts};
use crate::WriterEpoch;
use mcp_resume_protocol::ids::{Seq, StreamId};
use mcp_resume_protocol::stream::Batch;

/// Idle time before the permit of a stream is dropped.
const PERMIT_IDLE: Duration = Duration::from_secs(30);
/// Limit of permits, besides the permits of streams with an append in flight.
const PERMITS_MAX: usize = 64 * 1024;
/// Names and numbers of a plain addition.
const PLAIN_BYTES: usize = 128;

/// An append to be made.
pub(super) struct Append {
    stream: StreamId,
    epoch: WriterEpoch,
    after: Seq,
    count: usize,
    events: Vec<u8>,
    state: Option<Vec<u8>>,
}

impl Append {
    pub(super) fn new(stream: StreamId, epoch: WriterEpoch, after: Seq, batch: &Batch, state: Option<&[u8]>) -> Self {
        let (count, events, state) = (batch.len(), entry::encode(batch), state.map(<[u8]>::to_vec));
        Self { stream, epoch, after, count, events, state }
    }

    pub(super) fn stream(&self) -> StreamId {
        self.stream
    }

    fn last(&self) -> u64 {
        self.after.0.saturating_add(self.count as u64)
    }

    /// Returns the call of the script, which makes every check. It permits `holder` to add the next
    /// events by plain additions, unless that is empty.
    pub(super) fn script(&self, names: &Names, holder: &str) -> Cmd {
        let mut cmd = names.change(&scripts::APPEND, self.stream);
        cmd.arg(self.epoch.0)
            .arg(self.after.0)
            .arg(self.after.0.saturating_add(1))
            .arg(self.last())
            .arg(self.count)
            .arg(&self.events)
            .arg(u8::from(self.state.is_some()))
            .arg(self.state.as_deref().unwrap_or_default())
            .arg(holder);
        cmd
    }

    /// Returns the plain addition behind the last event of the key. No effect without such a key.
    fn plain(&self, key: &[u8]) -> Cmd {
        let mut cmd = Cmd::with_capacity(8, PLAIN_BYTES + self.events.len());
        cmd.arg("XADD").arg(key).arg("NOMKSTREAM").arg(self.last());
        cmd.arg("f").arg(self.after.0.saturating_add(1)).arg("d").arg(&self.events);
        cmd
    }
}

/// Permits for plain additions that one connection holds.
pub(super) struct PlainAppends {
    holder: String,
    streams: HashMap<StreamId, StreamAppends>,
}

/// A stream whose appends come over the connection.
struct StreamAppends {
    in_flight: usize,
    /// True if the append in flight is a plain addition.
    is_plain: bool,
    /// Time of the first addition in flight, or else of the last addition.
    used: Instant,
    permit: Option<Permit>,
}

/// Permission to add the next events of a stream by plain additions.
struct Permit {
    key: Vec<u8>,
    epoch: WriterEpoch,
    tail: Seq,
    until: Instant,
}

impl Permit {
    fn allows(&self, append: &Append, now: Instant) -> bool {
        self.epoch == append.epoch
            && self.tail == append.after
            && now < self.until
            && append.count > 0
            && append.state.is_none()
    }
}

impl PlainAppends {
    /// Creates the permits of one connection. `holder` names the connection, and is never used
    /// again.
    pub(super) fn new(holder: String) -> Self {
        Self { holder, streams: HashMap::new() }
    }

    /// Returns true if a plain addition is in flight that may have to be repeated: later calls of
    /// its order wait.
    pub(super) fn must_wait(&self, order: Order) -> bool {
        let Order::Stream(stream) = order else { return false };
        self.streams.get(&stream).is_some_and(|appends| appends.is_plain)
    }

    /// Returns the command for an append. Its reply is to be passed to [`Self::handle_reply`].
    pub(super) fn command(&mut self, append: &Append, names: &Names, now: Instant) -> Cmd {
        if self.streams.len() >= PERMITS_MAX {
            self.streams.retain(|_, appends| appends.in_flight > 0);
        }
        let appends = self.streams.entry(append.stream).or_insert(StreamAppends {
            in_flight: 0,
            is_plain: false,
            used: now,
            permit: None,
        });
        if appends.in_flight == 0 {
            appends.used = now;
        }
        appends.in_flight += 1;
        let permit = appends.permit.as_ref().filter(|permit| appends.in_flight == 1 && permit.allows(append, now));
        match permit {
            Some(permit) => {
                appends.is_plain = true;
                append.plain(&permit.key)
            }
            None => append.script(names, &self.holder),
        }
    }

    /// Handles the reply to a command; replies must come in the order of [`Self::command`]. Returns
    /// the replies for the caller, as the script would give them, or `None` if the append must be
    /// made by the script.
    pub(super) fn handle_reply(&mut self, append: &Append, names: &Names, answer: Value) -> Option<Replies> {
        let Some(appends) = self.streams.get_mut(&append.stream) else { return Some(check_replies(vec![answer])) };
        appends.in_flight = appends.in_flight.saturating_sub(1);
        let is_plain = std::mem::take(&mut appends.is_plain);
        if is_plain && let Value::BulkString(_) = answer {
            if let Some(permit) = &mut appends.permit {
                permit.tail = Seq(append.last());
            }
            return Some(Ok(Vec::new()));
        }
        let answer = check_replies(vec![answer]);
        if is_plain {
            appends.permit = None;
            return answer.err().filter(|failure| !matches!(failure, Failure::Refused(_))).map(Err);
        }
        appends.permit = match last_words(&answer).as_slice() {
            ["ok", generation, keep] => number(keep).ok().map(|keep| Permit {
                key: names.events(append.stream, generation),
                epoch: append.epoch,
                tail: Seq(append.last()),
                until: appends.used + Duration::from_millis(keep) / 16,
            }),
            _ => None,
        };
        Some(answer)
    }

    /// Drops the permits of streams without recent appends.
    pub(super) fn sweep(&mut self, now: Instant) {
        self.streams
            .retain(|_, appends| appends.in_flight > 0 || now.saturating_duration_since(appends.used) < PERMIT_IDLE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcp_resume_base::clock;

    const KEEP: Duration = Duration::from_secs(1600);

    fn names() -> Names {
        Names::new("mr:").unwrap()
    }

    fn append(epoch: u64, after: u64, texts: &[&str], state: Option<&[u8]>) -> Append {
        let mut batch = Batch::starting_at(Seq(after + 1));
        texts.iter().for_each(|text| _ = batch.push(b"", text.as_bytes()));
        Append::new(StreamId::from_bytes([7; 12]), WriterEpoch(epoch), Seq(after), &batch, state)
    }

    fn event(after: u64) -> Append {
        append(0, after, &["event"], None)
    }

    fn is_plain(cmd: &Cmd) -> bool {
        cmd.args_iter().next() == Some(::redis::Arg::Simple(b"XADD"))
    }

    fn words(words: &[&str]) -> Value {
        Value::Array(words.iter().map(|word| Value::BulkString(word.as_bytes().to_vec())).collect())
    }

    fn added() -> Value {
        Value::BulkString(b"1-0".to_vec())
    }

    fn error(line: &str) -> Value {
        ::redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap()
    }

    /// Returns the permits of a connection that holds the stream of these tests, with one event,
    /// and the time of its permit.
    fn held() -> (PlainAppends, Instant) {
        let (mut held, now) = (PlainAppends::new("me".to_owned()), clock::now());
        assert!(!is_plain(&held.command(&event(0), &names(), now)));
        let answer = held.handle_reply(&event(0), &names(), words(&["ok", "3", &KEEP.as_millis().to_string()]));
        assert!(answer.is_some());
        (held, now)
    }

    #[test]
    fn the_next_event_is_added_to_the_permitted_key() {
        let (mut held, now) = held();
        for after in 1..5 {
            let cmd = held.command(&event(after), &names(), now);
            assert!(is_plain(&cmd));
            let key = ::redis::Arg::Simple(&b"mr:{BwcHBwcHBwcHBwcH}:e3"[..]);
            assert_eq!(cmd.args_iter().nth(1), Some(key));
            assert!(held.must_wait(Order::Stream(event(0).stream())));
            assert!(matches!(held.handle_reply(&event(after), &names(), added()), Some(Ok(none)) if none.is_empty()));
            assert!(!held.must_wait(Order::Stream(event(0).stream())));
        }
    }

    #[test]
    fn an_append_other_than_the_next_event_goes_by_script() {
        for (what, other) in [
            ("another writer's", append(1, 1, &["event"], None)),
            ("another place", event(2)),
            ("an old place", event(0)),
            ("nothing", append(0, 1, &[], None)),
            ("a state", append(0, 1, &["event"], Some(b"state"))),
        ] {
            let (mut held, now) = held();
            assert!(!is_plain(&held.command(&other, &names(), now)), "{what}");
            assert!(!is_plain(&held.command(&event(1), &names(), now)), "while another append is in flight");
            held.handle_reply(&other, &names(), words(&["conflict", "1"]));
            held.handle_reply(&event(1), &names(), words(&["ok"]));
            assert!(!is_plain(&held.command(&event(2), &names(), now)), "the script did not say that it may be");
        }
    }

    #[test]
    fn the_script_is_asked_again_before_a_sixteenth_of_the_time_is_over() {
        let (mut held, began) = held();
        let due = began + KEEP / 16;
        assert!(is_plain(&held.command(&event(1), &names(), due.checked_sub(Duration::from_millis(1)).unwrap())));
        held.handle_reply(&event(1), &names(), added());
        assert!(!is_plain(&held.command(&event(2), &names(), due)));
        held.handle_reply(&event(2), &names(), words(&["ok", "3", &KEEP.as_millis().to_string()]));
        assert!(is_plain(&held.command(&event(3), &names(), due)));
    }

    #[test]
    fn a_refused_addition_is_left_to_the_script_and_other_failures_are_reported() {
        for answer in [Value::Nil, error("ERR The ID specified in XADD is equal or smaller")] {
            let (mut held, now) = held();
            held.command(&event(1), &names(), now);
            assert!(held.handle_reply(&event(1), &names(), answer).is_none());
            assert!(!is_plain(&held.command(&event(1), &names(), now)));
        }
        for failure in [error("OOM command not allowed"), error("READONLY You can't write")] {
            let (mut held, now) = held();
            held.command(&event(1), &names(), now);
            assert!(matches!(held.handle_reply(&event(1), &names(), failure), Some(Err(_))));
            assert!(!is_plain(&held.command(&event(1), &names(), now)));
        }
    }

    #[test]
    fn what_is_not_written_to_is_let_go_of() {
        let (mut held, now) = held();
        held.sweep(now + PERMIT_IDLE / 2);
        assert_eq!(held.streams.len(), 1);
        held.command(&event(1), &names(), now);
        held.sweep(now + PERMIT_IDLE);
        assert_eq!(held.streams.len(), 1, "its append is in flight");
        held.handle_reply(&event(1), &names(), added());
        held.sweep(now + PERMIT_IDLE);
        assert!(held.streams.is_empty());
    }
}
