//! Order of the starts that wait for a turn.
//!
//! Turns rotate over callers: a caller with a hundred starts delays each other caller by one turn.
//! The starts of one caller keep their order. A revival comes before first starts, because its
//! client is in the middle of its work. At most [`REVIVALS_IN_A_ROW`] such turns follow each other
//! while a first start waits. A start takes no turn if the limit of its caller blocks it, or if no
//! client wants it any more. Absent: the bounds of servers and the rate of starts (`pool`).

use std::collections::{BTreeMap, HashMap};

use crate::event_log::QuotaKey;

/// Most queued starts of one caller. All callers behind one address may count as one. The default
/// rate begins fewer starts within `upstream.start_secs`.
pub(super) const MAX_OF_CALLER: usize = 256;
/// Most queued starts.
const MAX: usize = 2048;
/// Most turns of revivals in a row while a first start waits.
const REVIVALS_IN_A_ROW: usize = 4;

/// Reason for a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartKind {
    /// A client opens a session, or its first channel without sessions.
    First,
    /// The proxy opens an earlier session again.
    Revival,
}

/// The queue is full, for one caller or for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

/// The queue of starts, each with a `T`. A caller is the holder of a quota, or `None` for the proxy
/// itself.
#[derive(Debug)]
pub(super) struct StartQueue<T> {
    callers: HashMap<Option<QuotaKey>, Caller<T>>,
    len: usize,
    next_number: u64,
    /// Number of turns taken so far.
    turns: u64,
    /// Last turn of each recent caller; covers at least the last [`MAX`] turns.
    recent: HashMap<Option<QuotaKey>, u64>,
    revivals_in_a_row: usize,
}

/// Queued starts of one caller, by number. Never empty.
#[derive(Debug)]
struct Caller<T> {
    rank: Rank,
    starts: BTreeMap<u64, (StartKind, T)>,
}

/// Place of a caller in the rotation. The least place is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    /// Number of turns at the caller's last turn, or at its arrival.
    turn: u64,
    /// True if the caller has had a recent turn.
    had_turn: bool,
    /// Number of the caller's first queued start.
    came: u64,
}

impl<T> Default for StartQueue<T> {
    fn default() -> Self {
        let (callers, recent) = (HashMap::new(), HashMap::new());
        Self { callers, len: 0, next_number: 0, turns: 0, recent, revivals_in_a_row: 0 }
    }
}

impl<T> StartQueue<T> {
    /// Adds a start. Returns its number.
    pub(super) fn add(&mut self, caller: Option<QuotaKey>, kind: StartKind, start: T) -> Result<u64, Full> {
        if self.len >= MAX || self.callers.get(&caller).is_some_and(|caller| caller.starts.len() >= MAX_OF_CALLER) {
            return Err(Full);
        }
        let number = self.next_number;
        self.next_number += 1;
        self.len += 1;
        let rank = Rank { turn: self.turns, had_turn: self.recent.contains_key(&caller), came: number };
        let caller = self.callers.entry(caller).or_insert_with(|| Caller { rank, starts: BTreeMap::new() });
        caller.starts.insert(number, (kind, start));
        Ok(number)
    }

    /// Returns the number of the next start among the starts that `may_begin` accepts.
    pub(super) fn next(&self, may_begin: impl Fn(Option<&QuotaKey>, &T) -> bool) -> Option<u64> {
        let of_kind = |wanted: StartKind| {
            let firsts = self.callers.iter().filter_map(|(key, caller)| {
                let mut starts = caller.starts.iter().filter(|(_, (kind, _))| *kind == wanted);
                starts.find(|(_, (_, start))| may_begin(key.as_ref(), start)).map(|(&number, _)| (caller.rank, number))
            });
            firsts.min().map(|(_, number)| number)
        };
        let (former, latter) = match self.revivals_in_a_row {
            REVIVALS_IN_A_ROW.. => (StartKind::First, StartKind::Revival),
            _ => (StartKind::Revival, StartKind::First),
        };
        of_kind(former).or_else(|| of_kind(latter))
    }

    pub(super) fn get_mut(&mut self, caller: &Option<QuotaKey>, number: u64) -> Option<&mut T> {
        self.callers.get_mut(caller)?.starts.get_mut(&number).map(|(_, start)| start)
    }

    /// Removes a start that begins now, and counts a turn of its caller.
    pub(super) fn begin(&mut self, caller: &Option<QuotaKey>, number: u64) -> Option<T> {
        let (kind, start) = self.take(caller, number)?;
        self.turns += 1;
        self.revivals_in_a_row = match kind {
            StartKind::First => 0,
            StartKind::Revival => self.revivals_in_a_row + 1,
        };
        if let Some(caller) = self.callers.get_mut(caller) {
            (caller.rank.turn, caller.rank.had_turn) = (self.turns, true);
        }
        self.recent.insert(caller.clone(), self.turns);
        if self.recent.len() > 2 * MAX {
            let oldest = self.turns.saturating_sub(MAX as u64);
            self.recent.retain(|_, turn| *turn > oldest);
        }
        Some(start)
    }

    /// Removes a start that does not begin.
    pub(super) fn remove(&mut self, caller: &Option<QuotaKey>, number: u64) {
        let _ = self.take(caller, number);
    }

    fn take(&mut self, key: &Option<QuotaKey>, number: u64) -> Option<(StartKind, T)> {
        let caller = self.callers.get_mut(key)?;
        let taken = caller.starts.remove(&number)?;
        self.len -= 1;
        if caller.starts.is_empty() {
            self.callers.remove(key);
        }
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(n: u8) -> Option<QuotaKey> {
        Some(QuotaKey::Known([n; 16]))
    }

    fn add(queue: &mut StartQueue<u8>, of: u8, kind: StartKind) {
        queue.add(caller(of), kind, of).expect("room");
    }

    /// Takes at most `most` turns. Returns the callers in their order.
    fn turns(queue: &mut StartQueue<u8>, most: usize) -> Vec<u8> {
        let mut order = Vec::new();
        while order.len() < most
            && let Some(number) = queue.next(|_, _| true)
        {
            let of = (0..=u8::MAX).find(|&of| queue.get_mut(&caller(of), number).is_some()).expect("a caller");
            order.extend(queue.begin(&caller(of), number));
        }
        order
    }

    #[test]
    fn a_caller_with_many_starts_delays_another_by_no_turn() {
        let mut queue = StartQueue::default();
        for _ in 0..60 {
            add(&mut queue, 1, StartKind::First);
        }
        assert_eq!(turns(&mut queue, 30), [1; 30]);
        add(&mut queue, 2, StartKind::First);
        assert_eq!(turns(&mut queue, 3), [2, 1, 1]);
    }

    #[test]
    fn a_caller_that_had_its_turns_comes_behind_one_that_had_none() {
        let mut queue = StartQueue::default();
        for _ in 0..3 {
            add(&mut queue, 1, StartKind::First);
            assert_eq!(turns(&mut queue, 1), [1], "no other waits");
        }
        for of in [1, 2] {
            add(&mut queue, of, StartKind::First);
        }
        assert_eq!(turns(&mut queue, 2), [2, 1]);
    }

    #[test]
    fn turns_of_long_ago_are_forgotten() {
        let mut queue = StartQueue::default();
        for n in 0..5000_u16 {
            let caller = Some(QuotaKey::Known(u128::from(n).to_be_bytes()));
            let number = queue.add(caller.clone(), StartKind::First, 0).expect("room");
            queue.begin(&caller, number);
        }
        assert!(queue.recent.len() <= 2 * MAX);
    }

    #[test]
    fn turns_rotate_over_callers() {
        let mut queue = StartQueue::default();
        add(&mut queue, 1, StartKind::First);
        add(&mut queue, 1, StartKind::First);
        let mut order = Vec::new();
        for of in 2..6 {
            add(&mut queue, of, StartKind::First);
            order.extend(turns(&mut queue, 1));
        }
        assert_eq!(order, [1, 2, 3, 1], "no caller that comes passes one that waits");
    }

    #[test]
    fn the_starts_of_a_caller_keep_their_order() {
        let mut queue = StartQueue::default();
        let numbers: Vec<u64> = (0..3).map(|n| queue.add(caller(1), StartKind::First, n).expect("room")).collect();
        for (&number, start) in numbers.iter().zip(0..) {
            assert_eq!(queue.next(|_, _| true), Some(number));
            assert_eq!(queue.begin(&caller(1), number), Some(start));
        }
        assert_eq!(queue.next(|_, _| true), None);
        assert!(queue.callers.is_empty() && queue.len == 0);
    }

    #[test]
    fn revivals_come_first_but_not_without_end() {
        let mut queue = StartQueue::default();
        add(&mut queue, 1, StartKind::First);
        for of in [2, 3, 2, 2, 2, 2] {
            add(&mut queue, of, StartKind::Revival);
        }
        assert_eq!(turns(&mut queue, 10), [2, 3, 2, 2, 1, 2, 2]);
    }

    #[test]
    fn a_start_that_may_not_begin_takes_no_turn() {
        let mut queue = StartQueue::default();
        for of in [1, 1, 2] {
            add(&mut queue, of, StartKind::First);
        }
        assert_eq!(queue.next(|of, _| of != caller(1).as_ref()), Some(2));
        queue.remove(&caller(1), 0);
        assert_eq!(queue.next(|_, _| true), Some(1));
    }

    #[test]
    fn starts_that_wait_are_bounded_for_a_caller_and_in_all() {
        let mut queue = StartQueue::default();
        for _ in 0..MAX_OF_CALLER {
            add(&mut queue, 0, StartKind::First);
        }
        assert_eq!(queue.add(caller(0), StartKind::Revival, 0), Err(Full));
        for n in 0..MAX - MAX_OF_CALLER {
            add(&mut queue, 1 + (n / MAX_OF_CALLER) as u8, StartKind::First);
        }
        assert_eq!(queue.add(caller(200), StartKind::First, 200), Err(Full));
        queue.remove(&caller(0), 0);
        assert!(queue.add(caller(200), StartKind::First, 200).is_ok());
    }
}
