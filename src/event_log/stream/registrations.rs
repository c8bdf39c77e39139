//! By what the POST that began a stream is known when it comes again, here and at other replicas.

use std::time::Instant;

use crate::event_log::recovery::remote_retries::Hold;
use crate::event_log::retry_index::Registration;
use crate::event_log::stream::Stream;
use crate::event_log::stream::response_head::Head;
use crate::sync;

impl Stream {
    /// Keeps an entry of the index of retries for as long as the stream lives.
    pub fn keep_registration(&self, registration: Registration) {
        let mut entries = sync::lock(&self.registrations);
        // Most streams have one.
        entries.reserve_exact(1);
        entries.push(registration);
    }

    /// No retry finds it any more.
    pub fn forget_retries(&self) {
        let entries = std::mem::take(&mut *sync::lock(&self.registrations));
        drop(entries);
    }

    /// Whether a retry can still find it.
    pub fn has_retries(&self) -> bool {
        !sync::lock(&self.registrations).is_empty()
    }

    /// Gives up an answer that still comes from the upstream and that no connection waits for: the upstream is not to wait either.
    pub fn drop_unread_answer(&self) {
        let inner = self.lock();
        if let Head::Plain(plain) = &inner.head
            && !inner.machine.reader().is_attached()
        {
            drop(plain.take_passing());
        }
    }

    /// Returns whether the store has a record by which a retry can find it elsewhere.
    pub(in crate::event_log) fn has_hold(&self) -> bool {
        let entries = sync::lock(&self.registrations);
        entries.iter().any(|entry| entry.hold().is_some())
    }

    /// Other replicas go on finding it, where they are to.
    pub(in crate::event_log) fn keep_holds(&self, now: Instant) {
        let entries = sync::lock(&self.registrations);
        entries.iter().filter_map(Registration::hold).for_each(|hold| hold.keep_if_due(now));
    }

    /// The same where the store has lost what told of it.
    pub(in crate::event_log) fn write_holds(&self) {
        let entries = sync::lock(&self.registrations);
        entries.iter().filter_map(Registration::hold).for_each(Hold::write_again);
    }

    /// They stay there when it goes here.
    pub(in crate::event_log) fn leave_holds(&self) {
        let entries = sync::lock(&self.registrations);
        entries.iter().filter_map(Registration::hold).for_each(Hold::leave);
    }
}
