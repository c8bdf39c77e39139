//! The suite that every store passes. A store's test module names it once: `contract::suite!(MyStore::new());`.

use std::sync::Arc;

use bytes::Bytes;

use super::{Answered, Appended, Error, Read, Store, WriterEpoch};
use crate::protocol::ids::{AttachId, Seq, StreamId};
use crate::protocol::jsonrpc::RequestId;
use crate::protocol::stream::{Batch, Outcome};
use crate::random;

/// One test for each clause, on a fresh store each.
macro_rules! suite {
    ($store:expr) => {
        $crate::store::contract::suite! { $store =>
            a_new_stream_is_empty
            batches_come_back_in_order
            an_identical_batch_is_written_once
            another_batch_at_an_old_place_conflicts
            an_append_is_seen_whole_or_not_at_all
            of_two_writers_one_is_fenced
            a_fenced_writer_stays_fenced
            a_sealed_stream_takes_nothing_more
            sealing_again_is_ok
            one_of_many_answers_is_the_first
            the_newest_reader_displaces_the_one_before
            a_read_keeps_to_its_limit
            a_read_behind_a_trim_tells_the_gap
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
                    $crate::store::contract::$clause(std::sync::Arc::new($store)).await;
                }
            )+
        }
    };
}
pub(crate) use suite;

fn name() -> StreamId {
    StreamId::from_bytes(random::bytes())
}

/// A batch behind `after`: an event for each text.
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

/// Shorthand for a store, one of its streams and one writer.
#[derive(Clone)]
struct Book {
    store: Arc<dyn Store>,
    stream: StreamId,
    epoch: WriterEpoch,
}

impl Book {
    async fn new(store: &Arc<impl Store>) -> Self {
        let (store, stream) = (store.clone() as Arc<dyn Store>, name());
        let epoch = store.create(stream).wait().await.unwrap();
        Self { store, stream, epoch }
    }

    async fn append(&self, after: u64, texts: &[&str]) -> Appended {
        self.store.append(self.stream, self.epoch, Seq(after), &batch(after, texts)).wait().await.unwrap()
    }

    async fn read(&self, after: u64, limit: usize) -> Read {
        self.store.read(self.stream, Seq(after), limit).wait().await.unwrap()
    }

    async fn all(&self) -> Read {
        self.read(0, usize::MAX).await
    }

    async fn seal(&self) -> Appended {
        self.store.seal(self.stream, self.epoch, Outcome::Completed).wait().await.unwrap()
    }

    async fn trim(&self, upto: u64) {
        self.store.trim(self.stream, Seq(upto)).wait().await.unwrap();
    }

    /// The next writer of the same stream.
    async fn taken_over(&self) -> Self {
        Self { epoch: self.store.take_over(self.stream).wait().await.unwrap(), ..self.clone() }
    }
}

pub(crate) async fn a_new_stream_is_empty(store: Arc<impl Store>) {
    let book = Book::new(&store).await;
    assert_eq!(book.all().await, Read::Events(vec![]));
}

pub(crate) async fn batches_come_back_in_order(store: Arc<impl Store>) {
    let book = Book::new(&store).await;
    assert_eq!(book.append(0, &["a", "b"]).await, Appended::Ok);
    assert_eq!(book.append(2, &["c"]).await, Appended::Ok);
    assert_eq!(book.all().await, events(0, &["a", "b", "c"]));
}

pub(crate) async fn an_identical_batch_is_written_once(store: Arc<impl Store>) {
    let book = Book::new(&store).await;
    for _ in 0..3 {
        assert_eq!(book.append(0, &["a", "b"]).await, Appended::Ok);
    }
    assert_eq!(book.append(2, &["c"]).await, Appended::Ok);
    assert_eq!(book.append(0, &["a", "b"]).await, Appended::Ok);
    assert_eq!(book.all().await, events(0, &["a", "b", "c"]));
}

pub(crate) async fn another_batch_at_an_old_place_conflicts(store: Arc<impl Store>) {
    let book = Book::new(&store).await;
    book.append(0, &["a", "b"]).await;
    let conflict = Appended::Conflict { tail: Seq(2) };
    for (after, texts) in [(0, ["x"].as_slice()), (0, &["a", "x"]), (1, &["b", "c"]), (5, &["f"])] {
        assert_eq!(book.append(after, texts).await, conflict, "{texts:?} behind {after}");
    }
    assert_eq!(book.all().await, events(0, &["a", "b"]));
}

pub(crate) async fn an_append_is_seen_whole_or_not_at_all(store: Arc<impl Store>) {
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

pub(crate) async fn of_two_writers_one_is_fenced(store: Arc<impl Store>) {
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

pub(crate) async fn a_fenced_writer_stays_fenced(store: Arc<impl Store>) {
    let old = Book::new(&store).await;
    old.append(0, &["a"]).await;
    let new = old.taken_over().await;
    // At the tail, behind it, where it wrote itself, and for the seal.
    assert_eq!(old.append(1, &["b"]).await, Appended::Fenced);
    assert_eq!(old.append(9, &["j"]).await, Appended::Fenced);
    assert_eq!(old.append(0, &["a"]).await, Appended::Fenced);
    assert_eq!(old.seal().await, Appended::Fenced);
    assert_eq!(new.append(1, &["b"]).await, Appended::Ok);
    assert_eq!(old.append(2, &["c"]).await, Appended::Fenced);
    assert_eq!(new.all().await, events(0, &["a", "b"]));
}

pub(crate) async fn a_sealed_stream_takes_nothing_more(store: Arc<impl Store>) {
    let book = Book::new(&store).await;
    book.append(0, &["a"]).await;
    assert_eq!(book.seal().await, Appended::Ok);
    assert_eq!(book.append(1, &["b"]).await, Appended::Sealed);
    assert_eq!(book.append(0, &["a"]).await, Appended::Ok, "it is there already");
    assert_eq!(book.taken_over().await.append(1, &["b"]).await, Appended::Sealed);
    assert_eq!(book.all().await, events(0, &["a"]));
}

pub(crate) async fn sealing_again_is_ok(store: Arc<impl Store>) {
    let book = Book::new(&store).await;
    assert_eq!(book.seal().await, Appended::Ok);
    assert_eq!(book.seal().await, Appended::Ok);
    let next = book.taken_over().await;
    assert_eq!(next.seal().await, Appended::Ok);
    assert_eq!(book.seal().await, Appended::Fenced);
}

pub(crate) async fn one_of_many_answers_is_the_first(store: Arc<impl Store>) {
    let book = Book::new(&store).await;
    let number = RequestId::Number("1".into());
    let answers = (0..16).map(|_| {
        let (book, id) = (book.clone(), number.clone());
        tokio::spawn(async move { book.store.answer(book.stream, &id).wait().await.unwrap() })
    });
    let mut firsts = 0;
    for answer in answers.collect::<Vec<_>>() {
        firsts += usize::from(answer.await.unwrap() == Answered::First);
    }
    assert_eq!(firsts, 1);
    // Another type is another id, and another stream another request.
    let text = RequestId::String("1".into());
    assert_eq!(book.store.answer(book.stream, &text).wait().await.unwrap(), Answered::First);
    let other = Book::new(&store).await;
    assert_eq!(other.store.answer(other.stream, &number).wait().await.unwrap(), Answered::First);
    assert_eq!(book.store.answer(book.stream, &number).wait().await.unwrap(), Answered::Again);
}

pub(crate) async fn the_newest_reader_displaces_the_one_before(store: Arc<impl Store>) {
    let book = Book::new(&store).await;
    let mut before = None;
    for reader in [AttachId(7), AttachId(3), AttachId(9)] {
        assert_eq!(store.attach(book.stream, reader).wait().await.unwrap(), before);
        before = Some(reader);
    }
}

pub(crate) async fn a_read_keeps_to_its_limit(store: Arc<impl Store>) {
    let book = Book::new(&store).await;
    book.append(0, &["a", "b", "c", "d"]).await;
    assert_eq!(book.read(0, 2).await, events(0, &["a", "b"]));
    assert_eq!(book.read(2, 2).await, events(2, &["c", "d"]));
    assert_eq!(book.read(3, 9).await, events(3, &["d"]));
    assert_eq!(book.read(4, 9).await, Read::Events(vec![]), "at the tail");
    assert_eq!(book.read(5, 9).await, Read::Events(vec![]), "beyond it");
}

pub(crate) async fn a_read_behind_a_trim_tells_the_gap(store: Arc<impl Store>) {
    let book = Book::new(&store).await;
    book.append(0, &["a", "b", "c"]).await;
    book.trim(2).await;
    for after in [0, 1] {
        assert_eq!(book.read(after, 9).await, Read::Trimmed { upto: Seq(2) });
    }
    assert_eq!(book.read(2, 9).await, events(2, &["c"]));
    book.trim(1).await;
    assert_eq!(book.read(1, 9).await, Read::Trimmed { upto: Seq(2) }, "a trim is not taken back");
    assert_eq!(book.append(3, &["d"]).await, Appended::Ok);
    assert_eq!(book.read(2, 9).await, events(2, &["c", "d"]));
}

pub(crate) async fn a_trim_beyond_the_tail_leaves_the_tail(store: Arc<impl Store>) {
    let book = Book::new(&store).await;
    book.append(0, &["a", "b"]).await;
    book.trim(9).await;
    assert_eq!(book.read(2, 9).await, Read::Events(vec![]));
    assert_eq!(book.append(2, &["c"]).await, Appended::Ok, "numbers go on");
    assert_eq!(book.read(2, 9).await, events(2, &["c"]));
}

pub(crate) async fn an_expired_stream_is_gone(store: Arc<impl Store>) {
    let book = Book::new(&store).await;
    book.append(0, &["a"]).await;
    for _ in 0..2 {
        store.expire(book.stream).wait().await.unwrap();
        assert_eq!(book.all().await, Read::Gone);
    }
    let appended = store.append(book.stream, book.epoch, Seq(1), &batch(1, &["b"])).wait().await;
    assert!(matches!(appended, Err(Error::Gone)), "{appended:?}");
    let sealed = store.seal(book.stream, book.epoch, Outcome::Expired).wait().await;
    assert!(matches!(sealed, Err(Error::Gone)), "{sealed:?}");
    assert!(matches!(store.take_over(book.stream).wait().await, Err(Error::Gone)));
}

pub(crate) async fn streams_do_not_touch_each_other(store: Arc<impl Store>) {
    let (one, two) = (Book::new(&store).await, Book::new(&store).await);
    one.append(0, &["a"]).await;
    two.append(0, &["x", "y"]).await;
    one.seal().await;
    store.expire(one.stream).wait().await.unwrap();
    assert_eq!(two.append(2, &["z"]).await, Appended::Ok);
    assert_eq!(two.all().await, events(0, &["x", "y", "z"]));
}

pub(crate) async fn readers_beside_a_writer_see_every_number_once(store: Arc<impl Store>) {
    const LAST: u64 = 300;
    let book = Book::new(&store).await;
    let readers: Vec<_> = (1..4)
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
        .collect();
    for after in 0..LAST {
        assert_eq!(book.append(after, &["event"]).await, Appended::Ok);
        tokio::task::yield_now().await;
    }
    for reader in readers {
        reader.await.unwrap();
    }
}
