//! Calls of a group: the check of each call, and the effect of its changes on memory once they are
//! written.
//!
//! Absent: the commit itself (`Writer::commit` in the module above), which writes the group by
//! `Database::commit`.

use std::sync::Arc;

use bytes::Bytes;

use super::command::{Call, Command};
use super::expiry::Item;
use super::group::Pending;
use super::{Obsolete, Writer};
use crate::disk::database;
#[cfg(test)]
use crate::disk::failure::Failure;
use crate::disk::layout::{self, OVERHEAD, StreamMeta};
use crate::disk::options::Fsync;
use crate::{Appended, Error, WriterEpoch};
use mcp_resume_protocol::ids::{Seq, StreamId};

/// The expiry of a stream is exact to this part of its time to live.
const KEPT_TO_WITHIN: u64 = 16;

/// An append without its reply.
struct Append {
    epoch: WriterEpoch,
    after: Seq,
    events: u64,
    batch: Vec<u8>,
    state: Option<Vec<u8>>,
}

impl Append {
    /// Returns the metadata of the stream after the append. A repeated batch changes no more than
    /// the expiry.
    fn meta_after(&self, before: StreamMeta, is_new: bool, at: u64) -> StreamMeta {
        let mut meta = before;
        if !meta.sealed {
            let until = at.saturating_add(meta.keep);
            // A small extension is left out: each would need a write of the row.
            if until < meta.until || until - meta.until >= meta.keep / KEPT_TO_WITHIN {
                meta.until = until;
            }
        }
        if let Some(state) = &self.state
            && is_new
        {
            meta.state = state.len() as u64 + OVERHEAD;
        }
        if is_new && self.events > 0 {
            meta.tail = Seq(meta.tail.0 + self.events);
            meta.events += self.batch.len() as u64 + OVERHEAD;
        }
        meta
    }
}

impl Writer {
    /// Checks a call and adds what it changes to the group.
    pub(super) fn apply_call(&mut self, call: Call) {
        let at = call.at;
        match call.command {
            Command::Create { stream, about, tail, keep, reply } => {
                let created = self.create(stream, about, tail, keep, at);
                self.group.add_reply(reply, created);
            }
            Command::Append { stream, epoch, after, events, batch, state, reply } => {
                let appended = self.append(stream, Append { epoch, after, events, batch, state }, at);
                self.group.replies.push(reply.with_append(appended));
            }
            Command::Seal { stream, epoch, state, keep, reply } => {
                let sealed = self.seal(stream, epoch, state, keep, at);
                self.group.add_reply(reply, sealed);
            }
            Command::WriteWhole { stream, about, events, batch, state, keep, reply } => {
                let append = Append { epoch: WriterEpoch::default(), after: Seq(0), events, batch, state: None };
                let written = self.write_whole(stream, about, append, state, keep, at);
                self.group.add_reply(reply, written);
            }
            Command::TakeOver { stream, reply } => {
                let taken = self.change(stream, at, |meta| {
                    meta.epoch.0 += 1;
                    meta.epoch
                });
                self.group.add_reply(reply, taken);
            }
            Command::Trim { stream, epoch, upto, reply } => {
                let trimmed = self.change(stream, at, |meta| meta.trim(epoch, upto));
                self.group.add_reply(reply, trimmed);
            }
            Command::Keep { stream, keep, reply } => {
                // A stream that is gone is not extended.
                let _ = self.change(stream, at, |meta| meta.until = meta.until.max(at.saturating_add(keep)));
                self.group.add_reply(reply, Ok(()));
            }
            Command::Expire { stream, reply } => {
                self.forget(stream);
                self.group.add_reply(reply, Ok(()));
            }
            Command::Put { key, value, keep, reply } => {
                let put = self.put(key, value, at.saturating_add(keep), at);
                self.group.add_reply(reply, put);
            }
            Command::Claim { key, value, keep, reply } => {
                let claimed = self.claim(key, value, at.saturating_add(keep), at);
                self.group.add_reply(reply, claimed);
            }
            Command::Replace { key, before, value, keep, reply } => {
                let replaced = self.replace(key, &before, value, at.saturating_add(keep), at);
                self.group.add_reply(reply, replaced);
            }
            Command::ExpireIfEqual { key, value, keep, reply } => {
                let held = self.expire_if_equal(key, &value, keep.map(|keep| at.saturating_add(keep)), at);
                self.group.add_reply(reply, held);
            }
            Command::Remove { key, reply } => {
                self.forget_record(key);
                self.group.add_reply(reply, Ok(()));
            }
            #[cfg(test)]
            Command::Hold(go_on) => {
                // An error means that the test has dropped the sender.
                let _ = go_on.recv();
            }
            #[cfg(test)]
            Command::Clean { reply } => {
                self.compact_all(at);
                self.group.add_reply(reply, Ok(()));
            }
            #[cfg(test)]
            Command::Fail { full, reply } => {
                self.commit();
                self.reopen(Failure { is_full: full, problem: "a test says so".into() }, None);
                self.group.add_reply(reply, Ok(()));
            }
        }
    }

    /// Returns the metadata of a stream after the group, expired or not.
    pub(super) fn meta(&self, stream: StreamId) -> Option<StreamMeta> {
        match self.group.metas.get(&stream) {
            Some(change) => change.meta,
            None => self.shared.index.streams.get(&stream).map(|meta| *meta),
        }
    }

    fn live_meta(&self, stream: StreamId, at: u64) -> Result<StreamMeta, Error> {
        self.meta(stream).filter(|meta| meta.lives(at)).ok_or(Error::Gone)
    }

    fn change<T>(&mut self, stream: StreamId, at: u64, act: impl FnOnce(&mut StreamMeta) -> T) -> Result<T, Error> {
        let before = self.live_meta(stream, at)?;
        let mut meta = before;
        let done = act(&mut meta);
        if meta != before {
            self.group.set_meta(stream, Some(&before), Some(meta));
        }
        Ok(done)
    }

    fn create(
        &mut self,
        stream: StreamId,
        about: Vec<u8>,
        tail: Seq,
        keep: u64,
        at: u64,
    ) -> Result<WriterEpoch, Error> {
        let meta = StreamMeta {
            number: self.next_number,
            epoch: WriterEpoch::default(),
            tail,
            trimmed: tail,
            until: at.saturating_add(keep),
            keep,
            events: 0,
            rows: about.len() as u64 + 2 * OVERHEAD + layout::META_BYTES as u64,
            state: 0,
            sealed: false,
        };
        self.ensure_space(meta.size(), at)?;
        self.next_number += 1;
        let before = self.meta(stream);
        if before.is_some() {
            self.group.set_row(layout::state_key(stream), None);
        }
        self.group.set_row(layout::about_key(stream), Some(about));
        self.group.set_meta(stream, before.as_ref(), Some(meta));
        Ok(WriterEpoch::default())
    }

    fn append(&mut self, stream: StreamId, append: Append, at: u64) -> Result<Appended, Error> {
        let before = self.live_meta(stream, at)?;
        if append.epoch < before.epoch {
            return Ok(Appended::Fenced);
        }
        let mut is_new = true;
        if append.after != before.tail {
            if self.group.metas.contains_key(&stream) {
                // The events to compare with must be in the database.
                self.commit();
                return self.append(stream, append, at);
            }
            if !self.holds(&before, &append)? {
                return Ok(Appended::Conflict { tail: before.tail });
            }
            is_new = false;
        } else if before.sealed {
            return Ok(Appended::Sealed);
        }
        let meta = append.meta_after(before, is_new, at);
        if meta.size() > before.size() && self.ensure_space(meta.size() - before.size(), at)? {
            return self.append(stream, append, at);
        }
        if let Some(state) = append.state
            && is_new
        {
            self.group.set_row(layout::state_key(stream), Some(state));
        }
        if meta.tail > before.tail {
            self.group.bytes += append.batch.len() + 32;
            self.group.events.push((layout::event_key(meta.number, meta.tail), append.batch));
        }
        if meta != before {
            self.group.set_meta(stream, Some(&before), Some(meta));
        }
        Ok(Appended::Ok)
    }

    /// True if the batch equals the stored events of its numbers.
    fn holds(&self, meta: &StreamMeta, append: &Append) -> Result<bool, Error> {
        let last = append.after.0.saturating_add(append.events);
        if append.after < meta.trimmed || last > meta.tail.0 {
            return Ok(false);
        }
        if append.events == 0 {
            return Ok(true);
        }
        let theirs = layout::decode_batch(&Bytes::copy_from_slice(&append.batch), Seq(last)).unwrap_or_default();
        let bytes = theirs.iter().map(|(_, event)| event.len()).sum();
        let Some(database) = &self.database else { return Err(Error::Unavailable("the store is closed".into())) };
        let ours = database.read(meta.number, append.after, meta.tail, bytes)?.unwrap_or_default();
        Ok(ours.len() >= theirs.len() && ours.iter().zip(&theirs).all(|(ours, theirs)| ours == theirs))
    }

    fn seal(
        &mut self,
        stream: StreamId,
        epoch: WriterEpoch,
        state: Vec<u8>,
        keep: u64,
        at: u64,
    ) -> Result<Appended, Error> {
        let before = self.live_meta(stream, at)?;
        if epoch < before.epoch {
            return Ok(Appended::Fenced);
        }
        if !before.sealed {
            let until = at.saturating_add(keep);
            let meta = StreamMeta { sealed: true, until, state: state.len() as u64 + OVERHEAD, ..before };
            self.group.set_row(layout::state_key(stream), Some(state));
            self.group.set_meta(stream, Some(&before), Some(meta));
        }
        Ok(Appended::Ok)
    }

    /// Creates a stream, appends `append` and seals it. There is space for all of it before
    /// anything is changed.
    fn write_whole(
        &mut self,
        stream: StreamId,
        about: Vec<u8>,
        append: Append,
        state: Vec<u8>,
        keep: u64,
        at: u64,
    ) -> Result<WriterEpoch, Error> {
        let bytes = about.len() + append.batch.len() + state.len() + layout::META_BYTES;
        self.ensure_space(bytes as u64 + 4 * OVERHEAD, at)?;
        let epoch = self.create(stream, about, Seq(0), keep, at)?;
        self.append(stream, append, at)?;
        self.seal(stream, epoch, state, keep, at)?;
        Ok(epoch)
    }

    pub(super) fn forget(&mut self, stream: StreamId) {
        if let Some(meta) = self.meta(stream) {
            self.group.set_row(layout::about_key(stream), None);
            self.group.set_row(layout::state_key(stream), None);
            self.group.set_meta(stream, Some(&meta), None);
        }
    }

    /// Returns expiry and size of a record after the group.
    pub(super) fn sized(&self, key: &Arc<[u8]>) -> Option<(u64, u64)> {
        match self.group.records.get(key) {
            Some(record) => record.as_ref().map(|(value, until)| (*until, database::record_size(key, value))),
            None => self.shared.index.records.get(key).map(|record| *record),
        }
    }

    fn put(&mut self, key: Arc<[u8]>, value: Bytes, until: u64, at: u64) -> Result<(), Error> {
        let size = |writer: &Self| writer.sized(&key).map_or(0, |(_, size)| size);
        let growth = database::record_size(&key, &value).saturating_sub(size(self));
        self.ensure_space(growth, at)?;
        let before = size(self);
        self.group.set_record(key, before, Some((value, until)));
        Ok(())
    }

    fn claim(&mut self, key: Arc<[u8]>, value: Bytes, until: u64, at: u64) -> Result<Option<Bytes>, Error> {
        match self.record(&key, at)? {
            Some(there) => Ok(Some(there)),
            None => self.put(key, value, until, at).map(|()| None),
        }
    }

    /// Writes `value` in the place of a record that is `before`. Returns whether the record is
    /// `value` after that.
    fn replace(&mut self, key: Arc<[u8]>, before: &[u8], value: Bytes, until: u64, at: u64) -> Result<bool, Error> {
        match self.record(&key, at)? {
            Some(there) if there == before || there == value => self.put(key, value, until, at).map(|()| true),
            Some(_) | None => Ok(false),
        }
    }

    /// Extends a record to `until`, or removes it if that is `None`, provided that it still equals
    /// `value`.
    fn expire_if_equal(&mut self, key: Arc<[u8]>, value: &[u8], until: Option<u64>, at: u64) -> Result<(), Error> {
        if let Some(there) = self.record(&key, at)?.filter(|there| there == value) {
            let size = self.sized(&key).map_or(0, |(_, size)| size);
            self.group.set_record(key, size, until.map(|until| (there, until)));
        }
        Ok(())
    }

    /// Returns the value of a record after the group, or `None` if it has expired.
    fn record(&self, key: &Arc<[u8]>, at: u64) -> Result<Option<Bytes>, Error> {
        if self.sized(key).is_none_or(|(until, _)| until <= at) {
            return Ok(None);
        }
        if let Some(Some((there, _))) = self.group.records.get(key) {
            return Ok(Some(there.clone()));
        }
        let Some(database) = &self.database else { return Err(Error::Unavailable("the store is closed".into())) };
        let there = database.record(key)?.map(|(_, value)| value);
        there.map(Some).ok_or_else(|| Error::Unavailable("a record is missing in the database".into()))
    }

    pub(super) fn forget_record(&mut self, key: Arc<[u8]>) {
        if let Some((_, size)) = self.sized(&key) {
            self.group.set_record(key, size, None);
        }
    }

    /// Makes room for `growth` more live bytes. Returns true if the group was committed for that.
    fn ensure_space(&mut self, growth: u64, at: u64) -> Result<bool, Error> {
        let fits = |writer: &Self| {
            writer.space.live().saturating_add_signed(writer.group.growth).saturating_add(growth)
                <= writer.space.limit()
        };
        if fits(self) {
            return Ok(false);
        }
        // Expired data goes first.
        self.commit();
        self.sweep(at);
        if fits(self) {
            return Ok(true);
        }
        if self.database.is_some() {
            self.space.is_full = true;
            self.publish_health();
        }
        Err(Error::Full(format!("{} bytes live, and {} may", self.space.live(), self.space.max)))
    }

    /// Applies a written group to the state in memory, and delivers its results.
    pub(super) fn apply(&mut self, mut pending: Pending) {
        let (metas, records) = (std::mem::take(&mut pending.metas), std::mem::take(&mut pending.records));
        self.compactor.note(pending.bytes as u64);
        let changed: Vec<StreamId> = metas.keys().copied().collect();
        for (stream, meta) in metas {
            self.apply_meta(stream, meta);
        }
        for (key, record) in records {
            self.apply_record(key, record);
        }
        if let Some(database) = &self.database {
            database.live_events.decide(self.next_number);
        }
        if self.fsync == Fsync::Always {
            self.publish_obsolete();
        }
        self.publish_health();
        pending.deliver();
        for stream in changed {
            self.shared.subscriptions.notify(stream);
        }
    }

    fn apply_meta(&mut self, stream: StreamId, meta: Option<StreamMeta>) {
        let streams = &self.shared.index.streams;
        let before = match meta {
            Some(meta) => {
                self.expiry.set(Item::Stream(stream), meta.until);
                self.space.events += meta.events;
                self.space.rows += meta.rows + meta.state;
                streams.insert(stream, meta)
            }
            None => streams.remove(&stream).map(|(_, meta)| meta),
        };
        if let Some(before) = before {
            self.space.events -= before.events;
            self.space.rows -= before.rows + before.state;
        }
        let after = meta.map(|meta| meta.number);
        if let Some(before) = before.filter(|before| Some(before.number) != after) {
            self.compactor.note(before.events);
            self.obsolete.push(Obsolete::Stream { number: before.number });
        }
        let Some(meta) = meta else { return };
        match before.filter(|before| before.number == meta.number) {
            Some(before) if before.trimmed == meta.trimmed => {}
            Some(_) => self.obsolete.push(Obsolete::Events { number: meta.number, trimmed: meta.trimmed }),
            None => {
                if let Some(database) = &self.database {
                    database.live_events.keep(meta.number, Seq(0));
                }
                if meta.trimmed > Seq(0) {
                    self.obsolete.push(Obsolete::Events { number: meta.number, trimmed: meta.trimmed });
                }
            }
        }
    }

    fn apply_record(&mut self, key: Arc<[u8]>, record: Option<(u64, u64)>) {
        let records = &self.shared.index.records;
        let before = match record {
            Some((until, size)) => {
                self.expiry.set(Item::Record(key.clone()), until);
                self.space.rows += size;
                records.insert(key, (until, size))
            }
            None => records.remove(&key).map(|(_, record)| record),
        };
        self.space.rows -= before.map_or(0, |(_, size)| size);
    }

    /// Marks events as obsolete, once the commit that made them so is synced.
    pub(super) fn publish_obsolete(&mut self) {
        let Some(database) = &self.database else { return };
        for obsolete in self.obsolete.drain(..) {
            match obsolete {
                Obsolete::Stream { number } => database.live_events.forget(number),
                Obsolete::Events { number, trimmed } => database.live_events.keep(number, trimmed),
            }
        }
    }
}

impl StreamMeta {
    /// Trims the stream. A fenced writer changes nothing, and neither does a number beyond the
    /// tail.
    fn trim(&mut self, epoch: WriterEpoch, upto: Seq) {
        let upto = upto.min(self.tail);
        if epoch < self.epoch || upto <= self.trimmed {
            return;
        }
        // The size of the remaining events is on disk only. The average size of all events is taken
        // for both.
        let (before, after) = (self.tail.0 - self.trimmed.0, self.tail.0 - upto.0);
        self.events = (u128::from(self.events) * u128::from(after) / u128::from(before)) as u64;
        self.trimmed = upto;
    }
}
