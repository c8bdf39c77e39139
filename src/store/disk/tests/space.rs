//! Disk space in use, and behaviour without any left.

use super::*;

/// Small sizes, so that a small test meets every case.
const SIZES: Sizes = Sizes { memtable: 256 << 10, slack: 1 << 20 };

fn open_small(directory: &TemporaryDirectory, max_bytes: u64) -> Arc<Disk> {
    let options = Options { max_bytes, ..directory.options(Fsync::Interval) };
    Disk::open_with(options, "replica", SIZES).unwrap().store
}

/// Returns the bytes of the tables in a directory: all that grows besides the journals.
fn table_bytes(directory: &TemporaryDirectory) -> u64 {
    let is_table = |file: &Path| file.parent().is_some_and(|parent| parent.ends_with("tables"));
    let files = directory.files();
    files.iter().filter(|file| is_table(file)).map(|file| file.metadata().map_or(0, |file| file.len())).sum()
}

#[tokio::test(start_paused = true)]
async fn the_space_of_expired_data_is_used_again() {
    const ROUND: usize = 200;
    let directory = TemporaryDirectory::new();
    let store = open_small(&directory, 1 << 30);
    let lasting = store.made(KEEP).await;
    let text = "x".repeat(20 << 10);
    let mut written = 0;
    for round in 0..12 {
        assert_eq!(store.appended(lasting, round, &["stays"]).await, Appended::Ok);
        for _ in 0..ROUND {
            let stream = store.made(Duration::from_secs(1)).await;
            assert_eq!(store.appended(stream, 0, &[&text]).await, Appended::Ok);
            written += text.len() as u64;
        }
        tokio::time::advance(Duration::from_secs(2)).await;
        store.clean().await;
        assert_eq!(store.shared.index.streams.len(), 1);
        let bytes = table_bytes(&directory);
        // The events of one round may be on their way to the disk, and a second time on their way
        // between tables.
        assert!(bytes < 16 << 20, "{bytes} bytes of {written} are there after round {round}");
    }
    assert!(written > 40 << 20);
    assert_eq!(store.all(lasting).await, events(0, &["stays"; 12]));
    drop(store);
    assert_eq!(open_small(&directory, 1 << 30).all(lasting).await, events(0, &["stays"; 12]));
}

#[tokio::test(start_paused = true)]
async fn rows_that_are_written_over_and_over_take_no_more() {
    let directory = TemporaryDirectory::new();
    let store = open_small(&directory, 1 << 30);
    let stream = store.made(KEEP).await;
    let value = vec![b'x'; 64 << 10];
    for round in 0..200_u64 {
        let state = store.append(stream, WriterEpoch(0), Seq(0), &batch(0, &[]), Some(&value)).wait();
        assert_eq!(state.await.unwrap(), Appended::Ok);
        store.put(b"key", &value, KEEP).wait().await.unwrap();
        if round % 20 == 19 {
            store.clean().await;
        }
    }
    let bytes = table_bytes(&directory);
    assert!(bytes < 10 << 20, "{bytes} bytes are there");
    assert_eq!(&store.load(stream).wait().await.unwrap().unwrap().state[..], &value[..]);
}

#[tokio::test(start_paused = true)]
async fn a_full_store_refuses_new_data_until_there_is_space() {
    const MAX: u64 = 1 << 20;
    let directory = TemporaryDirectory::new();
    let store = open_small(&directory, MAX);
    let text = "x".repeat(16 << 10);
    let (brief, lasting) = (store.made(Duration::from_secs(60)).await, store.made(KEEP).await);
    for after in 0..10 {
        assert_eq!(store.appended(brief, after, &[&text]).await, Appended::Ok);
    }
    let append = |after| store.append(lasting, WriterEpoch(0), Seq(after), &batch(after, &[&text]), None);
    let mut tail = 0;
    while append(tail).wait().await.is_ok() {
        tail += 1;
    }
    assert!(tail > 40, "{tail}");
    assert_eq!(store.health(), StoreHealth::Full);
    assert!(matches!(store.create(name(), b"", Seq(0), KEEP).wait().await, Err(Error::Full(_))));
    assert!(matches!(store.put(b"key", b"", KEEP).wait().await, Err(Error::Full(_))));
    assert!(matches!(append(tail).wait().await, Err(Error::Full(_))));
    // A repeated append needs no room, and neither does a seal.
    assert_eq!(append(tail - 1).wait().await.unwrap(), Appended::Ok);
    // A little free room is not enough.
    store.trim(lasting, WriterEpoch(0), Seq(1)).wait().await.unwrap();
    assert_eq!(store.health(), StoreHealth::Full);
    tokio::time::advance(Duration::from_secs(61)).await;
    // Expired data is removed to make room.
    assert_eq!(append(tail).wait().await.unwrap(), Appended::Ok);
    assert_eq!(store.health(), StoreHealth::Ready);
    assert_eq!(store.seal(lasting, WriterEpoch(0), b"end", KEEP).wait().await.unwrap(), Appended::Ok);
    drop(store);
    let store = open_small(&directory, MAX);
    assert_eq!(store.load(lasting).wait().await.unwrap().unwrap().tail, Seq(tail + 1));
}

#[tokio::test]
async fn one_call_that_is_too_large_does_not_fill_the_store() {
    let directory = TemporaryDirectory::new();
    let store = open_small(&directory, 1 << 20);
    let stream = store.made(KEEP).await;
    let large = store.append(stream, WriterEpoch(0), Seq(0), &batch(0, &[&"x".repeat(2 << 20)]), None);
    assert!(matches!(large.wait().await, Err(Error::Full(_))));
    assert_eq!(store.health(), StoreHealth::Ready);
    assert_eq!(store.appended(stream, 0, &["a"]).await, Appended::Ok);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_was_dropped_for_space_is_gone_for_earlier_calls_too() {
    let directory = TemporaryDirectory::new();
    let store = directory.open();
    let lasting = store.made(KEEP).await;
    // No expired data is removed for a while after this.
    tokio::time::advance(Duration::from_secs(10)).await;
    store.clean().await;
    let brief = store.made(Duration::from_millis(500)).await;
    let at = now();
    tokio::time::advance(Duration::from_millis(600)).await;
    store.fail(true).await;
    assert_eq!(store.shared.index.streams.len(), 2, "its row is still there");
    let (reply, taken) = Reply::new(store.completions.here());
    let call = Call { at, bytes: 0, command: Command::TakeOver { stream: brief, reply } };
    assert!(store.calls.as_ref().unwrap().send(call).is_ok());
    assert!(matches!(taken.await.unwrap(), Err(Error::Gone)));
    tokio::time::advance(Duration::from_secs(1)).await;
    store.clean().await;
    assert_eq!(store.shared.index.streams.len(), 1);
    assert_eq!(store.appended(lasting, 0, &["a"]).await, Appended::Ok);
}

/// A file system of its own, which can be full. These tests need root.
#[cfg(target_os = "linux")]
mod full_disk {
    use std::process::Command;

    use super::*;

    struct Mount(TemporaryDirectory);

    impl Mount {
        fn new(size: &str) -> Self {
            let directory = TemporaryDirectory::new();
            fs::create_dir_all(&directory.0).unwrap();
            let size = format!("size={size}");
            let mount = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&directory.0).status();
            assert!(mount.unwrap().success(), "this test mounts a file system, which takes root");
            Self(directory)
        }
    }

    impl Drop for Mount {
        fn drop(&mut self) {
            // A process that still uses the mount keeps it until it has finished.
            let _ = Command::new("umount").arg("-l").arg(&self.0.0).status();
        }
    }

    /// Time limit of a test that waits for a change, so that it fails and does not hang. The
    /// threads of the store take their time independently of the clock of the test.
    struct Patience(std::time::Instant);

    impl Patience {
        #[expect(clippy::disallowed_methods, reason = "a paused clock stands still while a test looks")]
        fn new() -> Self {
            Self(std::time::Instant::now())
        }

        fn check(&self, store: &Disk) {
            let attempts = store.shared.attempts.load(Ordering::Relaxed);
            assert!(self.0.elapsed() < Duration::from_secs(300), "{:?} after {attempts} attempts", store.health());
        }
    }

    /// Waits until the health of the store changes.
    async fn leaves(store: &Disk, standing: StoreHealth) {
        let patience = Patience::new();
        while store.health() == standing {
            patience.check(store);
            tokio::task::yield_now().await;
        }
    }

    /// Size of the disk. 12 MiB are taken for the time being.
    const DISK: u64 = 24 << 20;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_disk_that_is_full_for_a_commit_stays_full_until_there_is_space() {
        fill_and_free(Sizes { memtable: 64 << 20, ..SIZES }, DISK).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_disk_that_is_full_for_a_flush_stays_full_until_there_is_space() {
        // The space of the failed flush is free again, for commits.
        fill_and_free(Sizes { memtable: 1 << 20, ..SIZES }, DISK).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_disk_that_is_full_for_a_compaction_stays_full_until_there_is_space() {
        // Four tables of one MiB and a journal of that size leave room for commits and flushes, but
        // not for a second copy of the tables.
        fill_and_free(Sizes { memtable: 1 << 20, ..SIZES }, DISK - (1 << 20)).await;
    }

    /// Appends until there is no room, watches for a while, makes room, and continues.
    async fn fill_and_free(sizes: Sizes, disk: u64) {
        let mount = Mount::new(&disk.to_string());
        let ballast = mount.0.0.join("ballast");
        fs::write(&ballast, vec![1; 12 << 20]).unwrap();
        let directory = TemporaryDirectory(mount.0.0.join("store"));
        let open = || Disk::open_with(directory.options(Fsync::Always), "replica", sizes).unwrap().store;
        let store = open();
        let stream = store.made(KEEP).await;
        store.put(b"key", b"value", KEEP).wait().await.unwrap();
        let text = "x".repeat(64 << 10);
        let append = |after| store.append(stream, WriterEpoch(0), Seq(after), &batch(after, &[&text]), None);
        let mut tail = 0;
        let error = loop {
            match append(tail).wait().await {
                Ok(appended) => assert_eq!(appended, Appended::Ok),
                Err(error) => break error,
            }
            tail += 1;
        };
        assert!(tail > 20, "{tail}");
        assert!(matches!(error, Error::Full(_)), "{error}");
        let attempts = store.shared.attempts.load(Ordering::Relaxed);
        let patience = Patience::new();
        while store.shared.attempts.load(Ordering::Relaxed) < attempts + 4 {
            patience.check(&store);
            assert_eq!(store.health(), StoreHealth::Full);
            let error = append(tail).wait().await.unwrap_err();
            assert!(matches!(error, Error::Full(_)), "{error}");
            // Existing events stay readable, also while the database is opened again.
            assert_eq!(store.read(stream, Seq(0), 1).wait().await.unwrap(), events(0, &[&text]));
            assert_eq!(store.get(b"key").wait().await.unwrap().as_deref(), Some(&b"value"[..]));
        }
        fs::remove_file(&ballast).unwrap();
        leaves(&store, StoreHealth::Full).await;
        assert_eq!(store.health(), StoreHealth::Ready);
        // The failed call may have taken effect. Repeating it is right in either case.
        assert_eq!(append(tail).wait().await.unwrap(), Appended::Ok);
        let expected = vec![&*text; tail as usize + 1];
        assert!(store.all(stream).await == events(0, &expected), "something was lost");
        drop(store);
        assert!(open().all(stream).await == events(0, &expected), "something was lost");
    }

    /// Fills the disk to the last byte.
    fn fill(mount: &Mount) -> PathBuf {
        let rest = mount.0.0.join("rest");
        let mut file = fs::File::create(&rest).unwrap();
        for piece in [1 << 20, 1 << 12, 1] {
            while std::io::Write::write_all(&mut file, &vec![1; piece]).is_ok() {}
        }
        rest
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_store_that_is_opened_on_a_full_disk_is_read_and_says_that_it_is_full() {
        let mount = Mount::new(&DISK.to_string());
        let directory = TemporaryDirectory(mount.0.0.join("store"));
        let open = || Disk::open_with(directory.options(Fsync::Always), "replica", SIZES).unwrap().store;
        let store = open();
        let (ended, ran) = (store.made(KEEP).await, store.made(KEEP).await);
        assert_eq!(store.appended(ended, 0, &["a"]).await, Appended::Ok);
        assert_eq!(store.appended(ran, 0, &["b"]).await, Appended::Ok);
        assert_eq!(store.seal(ended, WriterEpoch(0), b"end", KEEP).wait().await.unwrap(), Appended::Ok);
        store.put(b"key", b"value", KEEP).wait().await.unwrap();
        drop(store);
        let rest = fill(&mount);
        let store = open();
        let patience = Patience::new();
        while store.shared.attempts.load(Ordering::Relaxed) < 4 {
            patience.check(&store);
            assert_eq!(store.health(), StoreHealth::Full);
            let kept = store.keep(ended, 2 * KEEP).wait().await;
            assert!(matches!(kept, Err(Error::Full(_))), "{kept:?}");
            assert_eq!(store.all(ended).await, events(0, &["a"]));
            assert!(store.load(ended).wait().await.unwrap().unwrap().sealed);
            assert_eq!(store.get(b"key").wait().await.unwrap().as_deref(), Some(&b"value"[..]));
            assert_eq!(store.get(b"other").wait().await.unwrap(), None);
        }
        fs::remove_file(rest).unwrap();
        leaves(&store, StoreHealth::Full).await;
        assert_eq!(store.appended(ran, 1, &["c"]).await, Appended::Ok);
        drop(store);
        assert_eq!(open().all(ran).await, events(0, &["b", "c"]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_disk_has_space_again_once_its_data_has_expired() {
        const BRIEF: Duration = Duration::from_secs(60);
        let mount = Mount::new(&DISK.to_string());
        let directory = TemporaryDirectory(mount.0.0.join("store"));
        let store = Disk::open_with(directory.options(Fsync::Always), "replica", SIZES).unwrap().store;
        let lasting = store.made(KEEP).await;
        assert_eq!(store.appended(lasting, 0, &["a"]).await, Appended::Ok);
        let text = "x".repeat(64 << 10);
        let fill = async || {
            let stream = name();
            store.create(stream, b"about", Seq(0), BRIEF).wait().await?;
            store.append(stream, WriterEpoch(0), Seq(0), &batch(0, &[&text]), None).wait().await
        };
        let error = loop {
            if let Err(error) = fill().await {
                break error;
            }
        };
        assert!(matches!(error, Error::Full(_)), "{error}");
        // The database is opened again before anything has expired, and not after that.
        let attempts = store.shared.attempts.load(Ordering::Relaxed);
        let patience = Patience::new();
        while store.shared.attempts.load(Ordering::Relaxed) < attempts + 3 {
            patience.check(&store);
            assert_eq!(store.health(), StoreHealth::Full);
            tokio::task::yield_now().await;
        }
        tokio::time::advance(2 * BRIEF).await;
        leaves(&store, StoreHealth::Full).await;
        assert_eq!(store.appended(lasting, 1, &["b"]).await, Appended::Ok);
        assert_eq!(store.all(lasting).await, events(0, &["a", "b"]));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_flush_that_finds_the_disk_full_is_noticed_without_a_call() {
        let mount = Mount::new(&DISK.to_string());
        let directory = TemporaryDirectory(mount.0.0.join("store"));
        let sizes = Sizes { memtable: 1 << 20, ..SIZES };
        let store = Disk::open_with(directory.options(Fsync::Always), "replica", sizes).unwrap().store;
        let stream = store.made(KEEP).await;
        let text = "x".repeat(64 << 10);
        for after in 0..15 {
            assert_eq!(store.appended(stream, after, &[&text]).await, Appended::Ok);
        }
        // Room for the appended events, but not for the memtable that they fill.
        let rest = fill(&mount);
        let file = fs::OpenOptions::new().write(true).open(&rest).unwrap();
        file.set_len(file.metadata().unwrap().len() - (640 << 10)).unwrap();
        drop(file);
        // One append, since another might come after the failed flush.
        assert_eq!(store.appended(stream, 15, &[&text]).await, Appended::Ok);
        leaves(&store, StoreHealth::Ready).await;
        assert_eq!(store.health(), StoreHealth::Full);
        fs::remove_file(rest).unwrap();
        leaves(&store, StoreHealth::Full).await;
        // A flush of the reopened database may have begun before there was space: it fails, and the
        // database is opened once more.
        let patience = Patience::new();
        let read = loop {
            match store.read(stream, Seq(0), usize::MAX).wait().await {
                Err(Error::Full(_)) => patience.check(&store),
                read => break read.unwrap(),
            }
            tokio::task::yield_now().await;
        };
        assert!(read == events(0, &[&*text; 16]), "something was lost");
    }
}
