//! Groups, restarts and failures.

use super::*;

#[tokio::test]
async fn calls_that_wait_are_one_group() {
    let fresh = Fresh::new(Fsync::Always);
    let store = &fresh.store;
    let streams = [store.made(KEEP).await, store.made(KEEP).await];
    let groups = || store.shared.groups.load(Ordering::Relaxed);
    let before = groups();
    let go_on = store.hold();
    let calls: Vec<_> = (0..50)
        .flat_map(|after| streams.map(|stream| (stream, after)))
        .map(|(stream, after)| store.append(stream, WriterEpoch(0), Seq(after), &batch(after, &["a"]), None))
        .collect();
    let last = store.seal(streams[0], WriterEpoch(0), b"end", KEEP);
    assert_eq!(groups(), before);
    drop(go_on);
    for call in calls {
        assert_eq!(call.wait().await.unwrap(), Appended::Ok);
    }
    assert_eq!(last.wait().await.unwrap(), Appended::Ok);
    assert_eq!(groups(), before + 1);
    assert_eq!(store.all(streams[1]).await, events(0, &["a"; 50]));
}

#[tokio::test]
async fn calls_of_one_group_see_each_other() {
    let fresh = Fresh::new(Fsync::Always);
    let store = &fresh.store;
    let (stream, gone) = (name(), name());
    let go_on = store.hold();
    let append =
        |epoch, after, texts: &[&str]| store.append(stream, WriterEpoch(epoch), Seq(after), &batch(after, texts), None);
    let created = [store.create(stream, b"about", Seq(0), KEEP), store.create(gone, b"about", Seq(0), KEEP)];
    let appended =
        [append(0, 0, &["a", "b"]), append(0, 0, &["a", "b"]), append(0, 1, &["b", "c"]), append(0, 2, &["c"])];
    let taken = store.take_over(stream);
    let later = [append(0, 3, &["d"]), append(1, 3, &["d"])];
    let sealed = store.seal(stream, WriterEpoch(1), b"end", KEEP);
    let last = append(1, 4, &["e"]);
    let claims = [store.claim(b"key", b"1", KEEP), store.claim(b"key", b"2", KEEP)];
    let removed = store.remove(b"key");
    let again = store.claim(b"key", b"3", KEEP);
    let expired = store.expire(gone);
    let lost = store.take_over(gone);
    drop(go_on);
    for created in created {
        assert_eq!(created.wait().await.unwrap(), WriterEpoch(0));
    }
    let conflict = Appended::Conflict { tail: Seq(2) };
    for (appended, expected) in appended.into_iter().zip([Appended::Ok, Appended::Ok, conflict, Appended::Ok]) {
        assert_eq!(appended.wait().await.unwrap(), expected);
    }
    assert_eq!(taken.wait().await.unwrap(), WriterEpoch(1));
    for (appended, expected) in later.into_iter().zip([Appended::Fenced, Appended::Ok]) {
        assert_eq!(appended.wait().await.unwrap(), expected);
    }
    assert_eq!(sealed.wait().await.unwrap(), Appended::Ok);
    assert_eq!(last.wait().await.unwrap(), Appended::Sealed);
    let [first, second] = claims;
    assert_eq!(first.wait().await.unwrap(), None);
    assert_eq!(second.wait().await.unwrap().as_deref(), Some(&b"1"[..]));
    removed.wait().await.unwrap();
    assert_eq!(again.wait().await.unwrap(), None);
    expired.wait().await.unwrap();
    assert!(matches!(lost.wait().await, Err(Error::Gone)));
    assert_eq!(store.all(stream).await, events(0, &["a", "b", "c", "d"]));
    assert_eq!(store.get(b"key").wait().await.unwrap().as_deref(), Some(&b"3"[..]));
}

#[tokio::test]
async fn where_a_stream_stands_is_found_again_from_its_events() {
    let directory = TemporaryDirectory::new();
    let store = directory.open();
    let stream = store.made(KEEP).await;
    let meta = |store: &Disk| store.shared.index.find(stream, now()).unwrap();
    for after in 0..1100 {
        let state = (after == 700).then_some(&b"state"[..]);
        let appended = store.append(stream, WriterEpoch(0), Seq(after), &batch(after, &["event"]), state);
        assert_eq!(appended.wait().await.unwrap(), Appended::Ok);
    }
    // The state that a killed process leaves.
    let copy = directory.copy();
    let again = copy.open();
    assert_eq!(meta(&again), meta(&store));
    let stored = again.load(stream).wait().await.unwrap().unwrap();
    assert_eq!((stored.tail, &stored.state[..]), (Seq(1100), &b"state"[..]));
    assert_eq!(again.appended(stream, 1100, &["event"]).await, Appended::Ok);
    assert!(matches!(again.all(stream).await, Read::Events(events) if events.len() == 1101));
}

#[tokio::test]
async fn a_call_whose_result_is_not_awaited_takes_effect() {
    let fresh = Fresh::new(Fsync::Always);
    let stream = fresh.store.made(KEEP).await;
    let go_on = fresh.store.hold();
    drop(fresh.store.append(stream, WriterEpoch(0), Seq(0), &batch(0, &["a"]), None));
    drop(go_on);
    assert_eq!(fresh.store.appended(stream, 1, &["b"]).await, Appended::Ok);
}

/// Returns a store with rows of every kind, and its expected replies.
async fn fill(store: &Disk) -> Vec<StreamId> {
    let streams = [store.made(KEEP).await, store.made(KEEP).await, store.made(KEEP).await, store.made(KEEP).await];
    let [open, sealed, taken, gone] = streams;
    for stream in [open, sealed, taken] {
        assert_eq!(store.appended(stream, 0, &["a", "b"]).await, Appended::Ok);
        assert_eq!(store.appended(stream, 2, &["c"]).await, Appended::Ok);
    }
    store.append(open, WriterEpoch(0), Seq(3), &batch(3, &["d"]), Some(b"state")).wait().await.unwrap();
    store.trim(open, WriterEpoch(0), Seq(1)).wait().await.unwrap();
    store.seal(sealed, WriterEpoch(0), b"end", KEEP).wait().await.unwrap();
    assert_eq!(store.take_over(taken).wait().await.unwrap(), WriterEpoch(1));
    store.expire(gone).wait().await.unwrap();
    store.put(b"put", b"1", KEEP).wait().await.unwrap();
    store.claim(b"claimed", b"2", KEEP).wait().await.unwrap();
    store.put(b"removed", b"3", KEEP).wait().await.unwrap();
    store.remove(b"removed").wait().await.unwrap();
    streams.to_vec()
}

async fn assert_filled(store: &Disk, streams: &[StreamId]) {
    let owner = Owner::from_name("replica");
    let stored = |epoch, trimmed, tail, state: &'static [u8], sealed| Stored {
        about: Bytes::from_static(b"about"),
        state: Bytes::from_static(state),
        owner,
        epoch: WriterEpoch(epoch),
        trimmed: Seq(trimmed),
        tail: Seq(tail),
        sealed,
    };
    let expected = [
        Some(stored(0, 1, 4, b"state", false)),
        Some(stored(0, 0, 3, b"end", true)),
        Some(stored(1, 0, 3, b"", false)),
        None,
    ];
    for (stream, expected) in streams.iter().zip(expected) {
        assert_eq!(store.load(*stream).wait().await.unwrap(), expected);
    }
    assert_eq!(store.all(streams[0]).await, Read::Trimmed { upto: Seq(1) });
    assert_eq!(store.read(streams[0], Seq(1), usize::MAX).wait().await.unwrap(), events(1, &["b", "c", "d"]));
    assert_eq!(store.all(streams[1]).await, events(0, &["a", "b", "c"]));
    assert_eq!(store.all(streams[3]).await, Read::Gone);
    let mut open = store.open_streams(owner).wait().await.unwrap();
    open.sort();
    let mut expected = vec![streams[0], streams[2]];
    expected.sort();
    assert_eq!(open, expected);
    for (key, value) in [(&b"put"[..], Some(&b"1"[..])), (b"claimed", Some(b"2")), (b"removed", None)] {
        assert_eq!(store.get(key).wait().await.unwrap().as_deref(), value);
    }
    assert_eq!(store.appended(streams[2], 3, &["d"]).await, Appended::Fenced);
}

#[tokio::test]
async fn everything_is_there_after_a_restart() {
    for fsync in [Fsync::Always, Fsync::Interval] {
        let directory = TemporaryDirectory::new();
        let store = Disk::open(directory.options(fsync), "replica").unwrap().store;
        let streams = fill(&store).await;
        drop(store);
        let store = directory.open();
        assert_filled(&store, &streams).await;
        assert_eq!(store.appended(streams[0], 4, &["e"]).await, Appended::Ok);
    }
}

#[tokio::test]
async fn everything_answered_is_there_after_the_process_is_killed() {
    for fsync in [Fsync::Always, Fsync::Interval] {
        let directory = TemporaryDirectory::new();
        let store = Disk::open(directory.options(fsync), "replica").unwrap().store;
        let streams = fill(&store).await;
        // A killed process leaves the files as the system has them.
        let copy = directory.copy();
        assert_filled(&copy.open(), &streams).await;
        assert_filled(&store, &streams).await;
    }
}

#[tokio::test]
async fn everything_is_there_after_the_database_was_opened_again() {
    let fresh = Fresh::new(Fsync::Always);
    let streams = fill(&fresh.store).await;
    for full in [false, true] {
        fresh.store.fail(full).await;
        assert_filled(&fresh.store, &streams).await;
        assert_eq!(fresh.store.health(), StoreHealth::Ready);
    }
    let tail = fresh.store.load(streams[0]).wait().await.unwrap().unwrap().tail;
    assert_eq!(fresh.store.appended(streams[0], tail.0, &["e"]).await, Appended::Ok);
}

#[tokio::test(start_paused = true)]
async fn only_expired_streams_are_gone_after_a_restart() {
    let directory = TemporaryDirectory::new();
    let store = directory.open();
    let (short, long) = (store.made(Duration::from_secs(60)).await, store.made(KEEP).await);
    store.put(b"short", b"1", Duration::from_secs(60)).wait().await.unwrap();
    store.put(b"long", b"1", KEEP).wait().await.unwrap();
    drop(store);
    tokio::time::advance(Duration::from_secs(61)).await;
    for _ in 0..2 {
        let store = directory.open();
        assert_eq!(store.load(short).wait().await.unwrap(), None);
        assert!(store.load(long).wait().await.unwrap().is_some());
        assert_eq!(store.get(b"short").wait().await.unwrap(), None);
        assert!(store.get(b"long").wait().await.unwrap().is_some());
        store.clean().await;
        assert_eq!((store.shared.index.streams.len(), store.shared.index.records.len()), (1, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn each_append_keeps_a_stream_for_as_long_again_across_restarts() {
    let directory = TemporaryDirectory::new();
    let minute = Duration::from_secs(60);
    let stream = directory.open().made(minute).await;
    for after in 0..5 {
        let store = directory.open();
        assert_eq!(store.appended(stream, after, &["a"]).await, Appended::Ok);
        tokio::time::advance(minute - Duration::from_secs(1)).await;
        store.clean().await;
    }
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(directory.open().all(stream).await, Read::Gone);
}

#[tokio::test]
async fn an_id_that_is_used_again_shows_nothing_of_before() {
    let directory = TemporaryDirectory::new();
    let store = directory.open();
    let stream = store.made(KEEP).await;
    store.append(stream, WriterEpoch(0), Seq(0), &batch(0, &["old", "old"]), Some(b"old")).wait().await.unwrap();
    store.expire(stream).wait().await.unwrap();
    drop(store);
    let store = directory.open();
    store.create(stream, b"new", Seq(0), KEEP).wait().await.unwrap();
    assert_eq!(store.all(stream).await, Read::Events(vec![]));
    assert_eq!(store.appended(stream, 0, &["new"]).await, Appended::Ok);
    assert_eq!(store.all(stream).await, events(0, &["new"]));
    assert_eq!(&store.load(stream).wait().await.unwrap().unwrap().state[..], b"");
}
