//! Tests of the store contract, which every store passes. The test module of a store names them
//! once: `contract::suite!(MyStore::new());`.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::{Appended, Error, Read, Store, StoreHealth, Stored, WriterEpoch};
use mcp_resume_base::clock;
use mcp_resume_base::random;
use mcp_resume_protocol::ids::{Seq, StreamId};
use mcp_resume_protocol::stream::Batch;

/// Time to live that is long enough for every test.
const KEEP: Duration = Duration::from_secs(600);
/// Time to live of data that expires at once.
const MOMENT: Duration = Duration::from_millis(1);

/// One test for each clause, each with a fresh store.
macro_rules! suite {
    ($store:expr) => {
        $crate::contract::suite! { $store =>
            a_new_stream_is_empty
            batches_are_read_in_order
            an_identical_batch_is_written_once
            another_batch_at_an_old_place_conflicts
            an_append_is_seen_whole_or_not_at_all
            of_two_writers_one_is_fenced
            a_fenced_writer_stays_fenced
            a_sealed_stream_takes_nothing_more
            a_whole_stream_is_written_in_one_step
            sealing_again_is_ok
            a_stream_is_loaded_with_its_description_and_its_last_state
            a_state_is_written_with_its_batch_or_alone_or_not_at_all
            open_streams_are_those_without_a_seal
            a_fenced_writer_trims_nothing
            a_follower_hears_of_every_change
            a_stream_that_is_not_kept_expires
            a_record_is_claimed_by_one
            a_record_is_replaced_by_one_of_those_who_saw_it
            a_record_is_extended_and_removed_only_while_it_is_equal
            a_record_that_is_not_kept_expires
            a_store_at_rest_is_ready
            a_read_keeps_to_its_limit
            a_read_behind_a_trim_tells_the_gap
            a_stream_that_was_lost_begins_where_its_events_do
            a_trim_beyond_the_tail_leaves_the_tail
            an_expired_stream_is_gone
            streams_do_not_touch_each_other
            readers_beside_a_writer_see_every_number_once
        }
    };
    ($store:expr => $($clause:ident)+) => {
        mod contract {
            use super::*;
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $clause() {
                    let fixture = $store;
                    $crate::contract::$clause($crate::contract::Fixture::store(&fixture)).await;
                }
            )+
        }
    };
}
#[cfg(test)]
pub(crate) use suite;

/// Description and final state of the streams in these tests: opaque bytes to a store.
const ABOUT: &[u8] = b"about \x00\xff";
const END: &[u8] = b"end";

/// A store under test, with the resources that must live as long.
pub(crate) trait Fixture {
    fn store(&self) -> Arc<dyn Store>;
}

impl<S: Store> Fixture for Arc<S> {
    fn store(&self) -> Arc<dyn Store> {
        self.clone()
    }
}

fn name() -> StreamId {
    StreamId::from_bytes(random::bytes())
}

/// Returns a batch after `after`, with one event for each text.
fn batch(after: u64, texts: &[&str]) -> Batch {
    let mut batch = Batch::starting_at(Seq(after + 1));
    for text in texts {
        batch.push(b"", text.as_bytes());
    }
    batch
}

fn events(after: u64, texts: &[&str]) -> Read {
    let bytes = batch(after, texts);
    Read::Events((after + 1..).map(Seq).zip(bytes.events().map(Bytes::copy_from_slice)).collect())
}

/// A store, one of its streams and one writer.
#[derive(Clone)]
struct Book {
    store: Arc<dyn Store>,
    stream: StreamId,
    epoch: WriterEpoch,
}

impl Book {
    async fn new(store: &Arc<dyn Store>) -> Self {
        let (store, stream) = (store.clone(), name());
        let epoch = store.create(stream, ABOUT, Seq(0), KEEP).wait().await.unwrap();
        Self { store, stream, epoch }
    }

    async fn append(&self, after: u64, texts: &[&str]) -> Appended {
        self.store.append(self.stream, self.epoch, Seq(after), &batch(after, texts), None).wait().await.unwrap()
    }

    async fn append_with(&self, after: u64, texts: &[&str], state: &[u8]) -> Appended {
        self.store.append(self.stream, self.epoch, Seq(after), &batch(after, texts), Some(state)).wait().await.unwrap()
    }

    async fn load(&self) -> Stored {
        self.store.load(self.stream).wait().await.unwrap().expect("the stream is there")
    }

    async fn read(&self, after: u64, max_bytes: usize) -> Read {
        self.store.read(self.stream, Seq(after), max_bytes).wait().await.unwrap()
    }

    async fn all(&self) -> Read {
        self.read(0, usize::MAX).await
    }

    async fn seal(&self) -> Appended {
        self.store.seal(self.stream, self.epoch, END, KEEP).wait().await.unwrap()
    }

    async fn trim(&self, upto: u64) {
        self.store.trim(self.stream, self.epoch, Seq(upto)).wait().await.unwrap();
    }

    /// Takes the stream over and returns its next writer.
    async fn taken_over(&self) -> Self {
        Self { epoch: self.store.take_over(self.stream).wait().await.unwrap(), ..self.clone() }
    }
}

pub(crate) async fn a_new_stream_is_empty(store: Arc<dyn Store>) {
    let book = Book::new(&store).await;
    assert_eq!(book.all().await, Read::Events(vec![]));
}

pub(crate) async fn batches_are_read_in_order(store: Arc<dyn Store>) {
    let book = Book::new(&store).await;
    assert_eq!(book.append(0, &["a", "b"]).await, Appended::Ok);
    assert_eq!(book.append(2, &["c"]).await, Appended::Ok);
    assert_eq!(book.all().await, events(0, &["a", "b", "c"]));
}

pub(crate) async fn an_identical_batch_is_written_once(store: Arc<dyn Store>) {
    let book = Book::new(&store).await;
    for _ in 0..3 {
        assert_eq!(book.append(0, &["a", "b"]).await, Appended::Ok);
    }
    assert_eq!(book.append(2, &["c"]).await, Appended::Ok);
    assert_eq!(book.append(0, &["a", "b"]).await, Appended::Ok);
    assert_eq!(book.all().await, events(0, &["a", "b", "c"]));
}

pub(crate) async fn another_batch_at_an_old_place_conflicts(store: Arc<dyn Store>) {
    let book = Book::new(&store).await;
    book.append(0, &["a", "b"]).await;
    let conflict = Appended::Conflict { tail: Seq(2) };
    for (after, texts) in [(0, ["x"].as_slice()), (0, &["a", "x"]), (1, &["b", "c"]), (5, &["f"])] {
        assert_eq!(book.append(after, texts).await, conflict, "{texts:?} behind {after}");
    }
    assert_eq!(book.all().await, events(0, &["a", "b"]));
}

pub(crate) async fn an_append_is_seen_whole_or_not_at_all(store: Arc<dyn Store>) {
    const ROUNDS: u64 = 200;
    let book = Book::new(&store).await;
    let writer = tokio::spawn({
        let book = book.clone();
        async move {
            for round in 0..ROUNDS {
                assert_eq!(book.append(round * 3, &["a", "b", "c"]).await, Appended::Ok);
                tokio::task::yield_now().await;
            }
        }
    });
    loop {
        let Read::Events(found) = book.all().await else { panic!("nothing was trimmed") };
        assert_eq!(found.len() % 3, 0, "a batch was seen half");
        if found.len() as u64 == ROUNDS * 3 {
            break;
        }
        tokio::task::yield_now().await;
    }
    writer.await.unwrap();
}

pub(crate) async fn of_two_writers_one_is_fenced(store: Arc<dyn Store>) {
    let old = Book::new(&store).await;
    old.append(0, &["a"]).await;
    let new = old.taken_over().await;
    assert!(new.epoch > old.epoch);
    let (from_old, from_new) = tokio::join!(
        tokio::spawn({
            let old = old.clone();
            async move { old.append(1, &["old"]).await }
        }),
        tokio::spawn({
            let new = new.clone();
            async move { new.append(1, &["new"]).await }
        }),
    );
    assert_eq!((from_old.unwrap(), from_new.unwrap()), (Appended::Fenced, Appended::Ok));
    assert_eq!(new.all().await, events(0, &["a", "new"]));
}

pub(crate) async fn a_fenced_writer_stays_fenced(store: Arc<dyn Store>) {
    let old = Book::new(&store).await;
    old.append(0, &["a"]).await;
    let new = old.taken_over().await;
    // At the tail, before it, at a place that it wrote itself, and for the seal.
    assert_eq!(old.append(1, &["b"]).await, Appended::Fenced);
    assert_eq!(old.append(9, &["j"]).await, Appended::Fenced);
    assert_eq!(old.append(0, &["a"]).await, Appended::Fenced);
    assert_eq!(old.seal().await, Appended::Fenced);
    assert_eq!(new.append(1, &["b"]).await, Appended::Ok);
    assert_eq!(old.append(2, &["c"]).await, Appended::Fenced);
    assert_eq!(new.all().await, events(0, &["a", "b"]));
}

pub(crate) async fn a_sealed_stream_takes_nothing_more(store: Arc<dyn Store>) {
    let book = Book::new(&store).await;
    book.append(0, &["a"]).await;
    assert_eq!(book.seal().await, Appended::Ok);
    assert_eq!(book.append(1, &["b"]).await, Appended::Sealed);
    assert_eq!(book.append(0, &["a"]).await, Appended::Ok, "it is there already");
    assert_eq!(book.taken_over().await.append(1, &["b"]).await, Appended::Sealed);
    assert_eq!(book.all().await, events(0, &["a"]));
}

pub(crate) async fn a_whole_stream_is_written_in_one_step(store: Arc<dyn Store>) {
    for is_there in [false, true] {
        let book = if is_there { Some(Book::new(&store).await) } else { None };
        if let Some(book) = &book {
            // In two appends: the second may be a plain one.
            book.append(0, &["old"]).await;
            book.append(1, &["older"]).await;
        }
        let stream = book.as_ref().map_or_else(name, |book| book.stream);
        let following = store.subscribe(stream).wait().await.unwrap();
        // Again, because the first reply may have been lost.
        for _ in 0..2 {
            let epoch = store.write_whole(stream, ABOUT, &batch(0, &["a", "b"]), END, KEEP).wait().await.unwrap();
            following.changed().await;
            let whole = Book { store: store.clone(), stream, epoch };
            let stored = whole.load().await;
            assert_eq!((&stored.about[..], &stored.state[..]), (ABOUT, END));
            assert_eq!((stored.epoch, stored.trimmed, stored.tail, stored.sealed), (epoch, Seq(0), Seq(2), true));
            assert_eq!(whole.all().await, events(0, &["a", "b"]));
            assert_eq!(whole.append(2, &["c"]).await, Appended::Sealed);
            assert_eq!(whole.append(0, &["a", "b"]).await, Appended::Ok, "it is there already");
            assert_eq!(whole.seal().await, Appended::Ok);
            assert_eq!(store.open_streams(stored.owner).wait().await.unwrap(), []);
        }
        if is_there {
            store.expire(stream).wait().await.unwrap();
        }
    }
    let stream = name();
    store.write_whole(stream, ABOUT, &batch(0, &["a"]), END, MOMENT).wait().await.unwrap();
    while store.load(stream).wait().await.unwrap().is_some() {
        clock::sleep(MOMENT).await;
    }
}

pub(crate) async fn sealing_again_is_ok(store: Arc<dyn Store>) {
    let book = Book::new(&store).await;
    assert_eq!(book.seal().await, Appended::Ok);
    assert_eq!(book.seal().await, Appended::Ok);
    let next = book.taken_over().await;
    assert_eq!(next.seal().await, Appended::Ok);
    assert_eq!(book.seal().await, Appended::Fenced);
}

pub(crate) async fn a_stream_is_loaded_with_its_description_and_its_last_state(store: Arc<dyn Store>) {
    assert_eq!(store.load(name()).wait().await.unwrap(), None);
    let book = Book::new(&store).await;
    let fresh = book.load().await;
    assert_eq!((&fresh.about[..], &fresh.state[..], fresh.tail, fresh.sealed), (ABOUT, &b""[..], Seq(0), false));
    assert_eq!(fresh.epoch, book.epoch);
    book.append(0, &["a", "b"]).await;
    book.append_with(2, &["c"], b"three").await;
    book.append(3, &["d"]).await;
    book.trim(1).await;
    let later = book.load().await;
    assert_eq!((&later.about[..], &later.state[..]), (ABOUT, &b"three"[..]));
    assert_eq!((later.trimmed, later.tail, later.sealed), (Seq(1), Seq(4), false));
    let next = book.taken_over().await;
    assert_eq!(next.seal().await, Appended::Ok);
    let sealed = book.load().await;
    assert_eq!((sealed.epoch, sealed.owner, &sealed.state[..], sealed.sealed), (next.epoch, fresh.owner, END, true));
}

pub(crate) async fn a_state_is_written_with_its_batch_or_alone_or_not_at_all(store: Arc<dyn Store>) {
    let old = Book::new(&store).await;
    assert_eq!(old.append_with(0, &["a"], b"one").await, Appended::Ok);
    assert_eq!(old.append_with(7, &["x"], b"no").await, Appended::Conflict { tail: Seq(1) });
    assert_eq!(&old.load().await.state[..], b"one");
    assert_eq!(old.append_with(1, &[], b"alone").await, Appended::Ok);
    assert_eq!(&old.load().await.state[..], b"alone");
    let new = old.taken_over().await;
    assert_eq!(old.append_with(1, &[], b"no").await, Appended::Fenced);
    assert_eq!(old.append_with(1, &["b"], b"no").await, Appended::Fenced);
    assert_eq!(&new.load().await.state[..], b"alone");
    new.seal().await;
    assert_eq!(new.append_with(1, &["b"], b"no").await, Appended::Sealed);
    new.append_with(0, &["a"], b"no").await;
    assert_eq!(&new.load().await.state[..], END);
}

pub(crate) async fn open_streams_are_those_without_a_seal(store: Arc<dyn Store>) {
    let (open, sealed, gone) = (Book::new(&store).await, Book::new(&store).await, Book::new(&store).await);
    sealed.seal().await;
    store.expire(gone.stream).wait().await.unwrap();
    let owner = open.load().await.owner;
    assert_eq!(store.open_streams(owner).wait().await.unwrap(), [open.stream]);
    let taken = open.taken_over().await;
    assert_eq!(store.open_streams(owner).wait().await.unwrap(), [open.stream]);
    taken.seal().await;
    assert_eq!(store.open_streams(owner).wait().await.unwrap(), []);
}

pub(crate) async fn a_fenced_writer_trims_nothing(store: Arc<dyn Store>) {
    let old = Book::new(&store).await;
    old.append(0, &["a", "b"]).await;
    let new = old.taken_over().await;
    old.trim(1).await;
    assert_eq!(new.all().await, events(0, &["a", "b"]));
}

pub(crate) async fn a_follower_hears_of_every_change(store: Arc<dyn Store>) {
    let book = Book::new(&store).await;
    let following = store.subscribe(book.stream).wait().await.unwrap();
    let other = Book::new(&store).await;
    let follower = tokio::spawn({
        let book = book.clone();
        async move {
            let mut seen = Vec::new();
            loop {
                let now = book.store.load(book.stream).wait().await.unwrap();
                seen.push(now.as_ref().map(|now| (now.tail.0, now.sealed)));
                if now.is_none() {
                    return seen;
                }
                following.changed().await;
            }
        }
    });
    for after in 0..20 {
        assert_eq!(book.append(after, &["event"]).await, Appended::Ok);
        other.append(after, &["event"]).await;
    }
    let next = book.taken_over().await;
    next.seal().await;
    store.expire(book.stream).wait().await.unwrap();
    let seen = tokio::time::timeout(KEEP, follower).await.expect("a change is never missed").unwrap();
    assert!(seen.is_sorted_by_key(|seen| seen.unwrap_or((u64::MAX, true))), "{seen:?}");
    assert_eq!(seen.last(), Some(&None));
}

pub(crate) async fn a_stream_that_is_not_kept_expires(store: Arc<dyn Store>) {
    let (unsealed, sealed, kept) = (name(), Book::new(&store).await, Book::new(&store).await);
    store.create(unsealed, ABOUT, Seq(0), MOMENT).wait().await.unwrap();
    sealed.append(0, &["a"]).await;
    store.seal(sealed.stream, sealed.epoch, END, MOMENT).wait().await.unwrap();
    store.keep(kept.stream, MOMENT).wait().await.unwrap();
    for stream in [unsealed, sealed.stream] {
        while store.load(stream).wait().await.unwrap().is_some() {
            tokio::task::yield_now().await;
        }
        assert_eq!(store.read(stream, Seq(0), usize::MAX).wait().await.unwrap(), Read::Gone);
        let appended = store.append(stream, WriterEpoch(9), Seq(0), &batch(0, &["b"]), None).wait().await;
        assert!(matches!(appended, Err(Error::Gone)), "{appended:?}");
        store.keep(stream, KEEP).wait().await.unwrap();
        assert_eq!(store.load(stream).wait().await.unwrap(), None, "what is gone is not kept");
    }
    assert!(store.load(kept.stream).wait().await.unwrap().is_some(), "no time is shortened");
}

pub(crate) async fn a_record_is_claimed_by_one(store: Arc<dyn Store>) {
    let claims = (0..16_u8).map(|value| {
        let store = store.clone();
        tokio::spawn(async move { store.claim(b"key", &[value], KEEP).wait().await.unwrap() })
    });
    let mut firsts = 0;
    let mut there = Vec::new();
    for claim in claims.collect::<Vec<_>>() {
        match claim.await.unwrap() {
            None => firsts += 1,
            Some(value) => there.push(value),
        }
    }
    let value = store.get(b"key").wait().await.unwrap().expect("one of the callers claimed it");
    assert_eq!((firsts, there), (1, vec![value; 15]));
    store.put(b"key", b"over", KEEP).wait().await.unwrap();
    assert_eq!(store.get(b"key").wait().await.unwrap().as_deref(), Some(&b"over"[..]));
    assert_eq!(store.get(b"other").wait().await.unwrap(), None);
    for _ in 0..2 {
        store.remove(b"key").wait().await.unwrap();
        assert_eq!(store.get(b"key").wait().await.unwrap(), None);
    }
    assert_eq!(store.claim(b"key", b"again", KEEP).wait().await.unwrap(), None);
}

pub(crate) async fn a_record_is_extended_and_removed_only_while_it_is_equal(store: Arc<dyn Store>) {
    let claim = async |value: &[u8]| store.claim(b"key", value, KEEP).wait().await.unwrap();
    let hold = async |value: &[u8], keep| store.expire_if_equal(b"key", value, keep).wait().await.unwrap();
    assert_eq!(claim(b"one").await, None);
    // Another caller's record stays, and its time is not shortened.
    hold(b"two", None).await;
    hold(b"two", Some(MOMENT)).await;
    assert_eq!(claim(b"two").await.as_deref(), Some(&b"one"[..]));
    hold(b"one", Some(2 * KEEP)).await;
    assert_eq!(store.get(b"key").wait().await.unwrap().as_deref(), Some(&b"one"[..]));
    hold(b"one", None).await;
    assert_eq!(claim(b"two").await, None);
    hold(b"two", Some(MOMENT)).await;
    while store.get(b"key").wait().await.unwrap().is_some() {
        tokio::task::yield_now().await;
    }
    // A removed record stays removed.
    hold(b"two", Some(KEEP)).await;
    assert_eq!(claim(b"one").await, None);
}

pub(crate) async fn a_record_is_replaced_by_one_of_those_who_saw_it(store: Arc<dyn Store>) {
    let replace =
        async |before: &'static [u8], value: &[u8]| store.replace(b"key", before, value, KEEP).wait().await.unwrap();
    assert!(!replace(b"", b"none").await);
    assert_eq!(store.get(b"key").wait().await.unwrap(), None);
    store.put(b"key", b"one", KEEP).wait().await.unwrap();
    let replaced = (0..16_u8).map(|value| {
        let store = store.clone();
        tokio::spawn(async move { store.replace(b"key", b"one", &[value], KEEP).wait().await.unwrap() })
    });
    let mut winners = Vec::new();
    for (value, replaced) in (0..16_u8).zip(replaced.collect::<Vec<_>>()) {
        if replaced.await.unwrap() {
            winners.push(value);
        }
    }
    let there = store.get(b"key").wait().await.unwrap().expect("a record is replaced, never removed");
    assert_eq!(*there, winners[..]);
    assert!(replace(b"one", &winners).await, "a repeated call");
    assert!(!replace(b"one", b"two").await);
    store.replace(b"key", &winners, b"short", MOMENT).wait().await.unwrap();
    while store.get(b"key").wait().await.unwrap().is_some() {
        tokio::task::yield_now().await;
    }
    assert!(!replace(b"short", b"late").await, "a record that has expired");
}

pub(crate) async fn a_record_that_is_not_kept_expires(store: Arc<dyn Store>) {
    store.put(b"put", b"1", MOMENT).wait().await.unwrap();
    store.claim(b"claimed", b"1", MOMENT).wait().await.unwrap();
    for key in [&b"put"[..], b"claimed"] {
        while store.get(key).wait().await.unwrap().is_some() {
            tokio::task::yield_now().await;
        }
        assert_eq!(store.claim(key, b"2", KEEP).wait().await.unwrap(), None);
        assert_eq!(store.get(key).wait().await.unwrap().as_deref(), Some(&b"2"[..]));
    }
}

pub(crate) async fn a_store_at_rest_is_ready(store: Arc<dyn Store>) {
    assert_eq!(store.health(), StoreHealth::Ready);
}

pub(crate) async fn a_read_keeps_to_its_limit(store: Arc<dyn Store>) {
    let book = Book::new(&store).await;
    book.append(0, &["a", "b", "c", "d"]).await;
    // Each event is `data: x` and an empty line: 9 bytes.
    assert_eq!(book.read(0, 18).await, events(0, &["a", "b"]));
    assert_eq!(book.read(0, 26).await, events(0, &["a", "b"]));
    assert_eq!(book.read(2, 18).await, events(2, &["c", "d"]));
    assert_eq!(book.read(2, 0).await, events(2, &["c"]), "one at least");
    assert_eq!(book.read(3, 999).await, events(3, &["d"]));
    assert_eq!(book.read(4, 999).await, Read::Events(vec![]), "at the tail");
    assert_eq!(book.read(5, 999).await, Read::Events(vec![]), "beyond it");
}

pub(crate) async fn a_read_behind_a_trim_tells_the_gap(store: Arc<dyn Store>) {
    let book = Book::new(&store).await;
    book.append(0, &["a", "b", "c"]).await;
    book.trim(2).await;
    for after in [0, 1] {
        assert_eq!(book.read(after, 999).await, Read::Trimmed { upto: Seq(2) });
    }
    assert_eq!(book.read(2, 999).await, events(2, &["c"]));
    book.trim(1).await;
    assert_eq!(book.read(1, 999).await, Read::Trimmed { upto: Seq(2) }, "a trim is not taken back");
    assert_eq!(book.append(3, &["d"]).await, Appended::Ok);
    assert_eq!(book.read(2, 999).await, events(2, &["c", "d"]));
}

pub(crate) async fn a_stream_that_was_lost_begins_where_its_events_do(store: Arc<dyn Store>) {
    let stream = name();
    let epoch = store.create(stream, ABOUT, Seq(5), KEEP).wait().await.unwrap();
    let book = Book { store: store.clone(), stream, epoch };
    assert_eq!(book.read(4, 999).await, Read::Trimmed { upto: Seq(5) });
    assert_eq!(book.append(0, &["a"]).await, Appended::Conflict { tail: Seq(5) });
    assert_eq!(book.append(5, &["f"]).await, Appended::Ok);
    assert_eq!(book.read(5, 999).await, events(5, &["f"]));
    assert_eq!((book.load().await.trimmed, book.load().await.tail), (Seq(5), Seq(6)));
}

pub(crate) async fn a_trim_beyond_the_tail_leaves_the_tail(store: Arc<dyn Store>) {
    let book = Book::new(&store).await;
    book.append(0, &["a", "b"]).await;
    book.trim(9).await;
    assert_eq!(book.read(2, 999).await, Read::Events(vec![]));
    assert_eq!(book.append(2, &["c"]).await, Appended::Ok, "numbers go on");
    assert_eq!(book.read(2, 999).await, events(2, &["c"]));
}

pub(crate) async fn an_expired_stream_is_gone(store: Arc<dyn Store>) {
    let book = Book::new(&store).await;
    book.append(0, &["a"]).await;
    for _ in 0..2 {
        store.expire(book.stream).wait().await.unwrap();
        assert_eq!(book.all().await, Read::Gone);
    }
    let appended = store.append(book.stream, book.epoch, Seq(1), &batch(1, &["b"]), None).wait().await;
    assert!(matches!(appended, Err(Error::Gone)), "{appended:?}");
    let sealed = store.seal(book.stream, book.epoch, END, KEEP).wait().await;
    assert!(matches!(sealed, Err(Error::Gone)), "{sealed:?}");
    assert!(matches!(store.take_over(book.stream).wait().await, Err(Error::Gone)));
}

pub(crate) async fn streams_do_not_touch_each_other(store: Arc<dyn Store>) {
    let (one, two) = (Book::new(&store).await, Book::new(&store).await);
    one.append(0, &["a"]).await;
    two.append(0, &["x", "y"]).await;
    one.seal().await;
    store.expire(one.stream).wait().await.unwrap();
    assert_eq!(two.append(2, &["z"]).await, Appended::Ok);
    assert_eq!(two.all().await, events(0, &["x", "y", "z"]));
}

pub(crate) async fn readers_beside_a_writer_see_every_number_once(store: Arc<dyn Store>) {
    const LAST: u64 = 300;
    let book = Book::new(&store).await;
    let readers: Vec<_> = [1, 30, usize::MAX]
        .map(|limit| {
            let book = book.clone();
            tokio::spawn(async move {
                let mut cursor = 0;
                while cursor < LAST {
                    let Read::Events(found) = book.read(cursor, limit).await else { panic!("nothing was trimmed") };
                    for (seq, _) in found {
                        assert_eq!(seq, Seq(cursor + 1), "a hole or a repeat");
                        cursor = seq.0;
                    }
                    tokio::task::yield_now().await;
                }
            })
        })
        .into();
    for after in 0..LAST {
        assert_eq!(book.append(after, &["event"]).await, Appended::Ok);
        tokio::task::yield_now().await;
    }
    for reader in readers {
        reader.await.unwrap();
    }
}
