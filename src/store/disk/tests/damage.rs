//! Files that are cut off, or have other bits in them than were written.

use super::*;

const SIZES: Sizes = Sizes { memtable: 32 << 10, slack: 1 << 20 };

/// A closed store whose events are in tables and in a journal: the stream, and the texts of its events.
async fn written() -> (TemporaryDirectory, StreamId, Vec<String>) {
    let directory = TemporaryDirectory::new();
    let open = || Disk::open_with(directory.options(Fsync::Always), "replica", SIZES).unwrap().store;
    let store = open();
    let stream = store.made(KEEP).await;
    let texts: Vec<String> = (0..30).map(|number| format!("{number} {}", "x".repeat(3000))).collect();
    for (after, text) in texts.iter().enumerate() {
        assert_eq!(store.appended(stream, after as u64, &[text]).await, Appended::Ok);
    }
    drop(store);
    // Opened once more, the journal is as long as what is in it.
    drop(open());
    (directory, stream, texts)
}

/// Opens a damaged copy: an error, or a store in which the stream has lost nothing but its end, if it can be read.
async fn look_at(directory: &TemporaryDirectory, stream: StreamId, texts: &[String], what: &str) -> &'static str {
    let opened = Disk::open_with(directory.options(Fsync::Always), "replica", SIZES);
    let Ok(Opened { store, .. }) = opened else { return "refused" };
    match store.read(stream, Seq(0), usize::MAX).wait().await {
        Ok(Read::Events(found)) => {
            let whole: Vec<_> = texts.iter().map(String::as_str).collect();
            let Read::Events(expected) = events(0, &whole[..found.len()]) else { unreachable!() };
            assert!(found == expected, "other events than were written: {what}");
            if found.len() == texts.len() { "whole" } else { "cut" }
        }
        Ok(Read::Gone) => "cut",
        Ok(Read::Trimmed { .. }) => panic!("nothing was trimmed: {what}"),
        Err(_) => "unreadable",
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_is_refused_or_costs_the_end_alone() {
    let (directory, stream, texts) = written().await;
    let is_table = |file: &PathBuf| file.parent().is_some_and(|parent| parent.ends_with("tables"));
    assert!(directory.files().iter().filter(|file| is_table(file)).count() > 1, "nothing was flushed");
    assert_eq!(look_at(&directory.copy(), stream, &texts, "nothing").await, "whole");
    let mut outcomes = std::collections::BTreeMap::<&str, u32>::new();
    for file in directory.files() {
        let name = file.strip_prefix(&directory.0).unwrap();
        let bytes = fs::read(&file).unwrap();
        let places = [0, bytes.len() / 3, bytes.len() / 2, bytes.len().saturating_sub(1)];
        for (place, cut) in places.into_iter().flat_map(|place| [(place, true), (place, false)]) {
            let mut damaged = bytes.clone();
            match cut {
                true => damaged.truncate(place),
                false if damaged.is_empty() => continue,
                false => damaged[place] ^= 0x10,
            }
            let what = format!("{} {} at {place}", name.display(), if cut { "cut" } else { "flipped" });
            let copy = directory.copy();
            fs::write(copy.0.join(name), damaged).unwrap();
            let outcome = look_at(&copy, stream, &texts, &what).await;
            *outcomes.entry(outcome).or_default() += 1;
        }
    }
    assert!(outcomes["refused"] > 0 && outcomes["whole"] > 0, "{outcomes:?}");
}

/// Where the last bytes of a journal begin that are not zero.
fn end_of(journal: &[u8]) -> usize {
    journal.iter().rposition(|byte| *byte != 0).unwrap() + 1
}

#[tokio::test]
async fn a_torn_write_at_the_end_costs_that_write_alone() {
    let directory = TemporaryDirectory::new();
    let store = directory.open();
    let stream = store.made(KEEP).await;
    for after in 0..5 {
        assert_eq!(store.appended(stream, after, &["event"]).await, Appended::Ok);
    }
    let before = directory.copy();
    assert_eq!(store.appended(stream, 5, &["torn"]).await, Appended::Ok);
    let after = directory.copy();
    drop(store);
    let journal = |directory: &TemporaryDirectory| directory.0.join("db").join("0.jnl");
    let (begin, bytes) = (end_of(&fs::read(journal(&before)).unwrap()), fs::read(journal(&after)).unwrap());
    let end = end_of(&bytes);
    for place in (begin..end).step_by(7) {
        // The rest of the journal is zeros, as the file system leaves it.
        let mut torn = bytes[..place].to_vec();
        torn.resize(end + 4096, 0);
        let copy = before.copy();
        fs::write(journal(&copy), torn).unwrap();
        let store = copy.open();
        assert_eq!(store.all(stream).await, events(0, &["event"; 5]), "torn at {place} of {begin}..{end}");
        assert_eq!(store.appended(stream, 5, &["again"]).await, Appended::Ok);
    }
}

#[tokio::test]
async fn damage_before_intact_writes_is_refused_where_no_power_cut_leaves_it() {
    let directory = TemporaryDirectory::new();
    let store = directory.open();
    let stream = store.made(KEEP).await;
    for after in 0..5 {
        assert_eq!(store.appended(stream, after, &["event"]).await, Appended::Ok);
    }
    drop(store);
    let journal = directory.0.join("db").join("0.jnl");
    let mut bytes = fs::read(&journal).unwrap();
    let places: Vec<_> = memchr::memmem::find_iter(&bytes, b"data: event").collect();
    assert_eq!(places.len(), 5);
    bytes[places[3]] ^= 1;
    fs::write(&journal, &bytes).unwrap();
    let Err(error) = Disk::open(directory.options(Fsync::Always), "replica") else { panic!("it was opened") };
    assert!(error.to_string().contains("before writes that are intact"), "{error}");
    assert!(fs::read(&journal).unwrap() == bytes, "it was changed");
    let store = Disk::open(directory.options(Fsync::Interval), "replica").unwrap().store;
    assert_eq!(store.all(stream).await, events(0, &["event"; 3]));
}
