//! Files that are truncated, or have flipped bits.

use super::*;

const SIZES: Sizes = Sizes { memtable: 32 << 10, slack: 1 << 20 };
/// Bytes of events that certainly cause a flush of a memtable.
const EVENTS_OF_TABLE: usize = 44 << 10;

/// A closed store with events in tables and in a journal: the stream, and the texts of its events.
async fn written() -> (TemporaryDirectory, StreamId, Vec<String>) {
    let directory = TemporaryDirectory::new();
    let open = || Disk::open_with(directory.options(Fsync::Always), "replica", SIZES).unwrap().store;
    let store = open();
    let stream = store.made(KEEP).await;
    let texts: Vec<String> = (0..30).map(|number| format!("{number} {}", "x".repeat(3000))).collect();
    for (after, text) in texts.iter().enumerate() {
        assert_eq!(store.appended(stream, after as u64, &[text]).await, Appended::Ok);
        // The database flushes in threads of its own. On a busy machine it would write one table.
        let flushed = (after + 1) * text.len() / EVENTS_OF_TABLE;
        let is_flushed = async { until_tables(&directory, flushed).await };
        let _ = tokio::time::timeout(Duration::from_secs(30), is_flushed).await;
    }
    drop(store);
    // After another open, the journal is as long as its contents.
    drop(open());
    (directory, stream, texts)
}

/// Waits until as many tables of events exist.
async fn until_tables(directory: &TemporaryDirectory, count: usize) {
    let is_events = |file: &&PathBuf| file.parent().is_some_and(|folder| folder.ends_with("keyspaces/2/tables"));
    while directory.files().iter().filter(is_events).count() < count {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Returns such a store with the writes of the journal in three files. The database begins a new
/// journal only after so many writes that a test would take long.
async fn written_in_three() -> (TemporaryDirectory, StreamId, Vec<String>) {
    let (directory, stream, texts) = written().await;
    let journal = |number: usize| directory.0.join(format!("db/{number}.jnl"));
    let bytes = fs::read(journal(0)).unwrap();
    let ends: Vec<_> = memchr::memmem::find_iter(&bytes, b"FJL\x03").map(|at| at + 4).collect();
    assert!(ends.len() > texts.len() && ends.last() == Some(&bytes.len()), "the texts have none of these");
    let places = [0, ends[ends.len() / 3], ends[2 * ends.len() / 3], bytes.len()];
    for (number, part) in places.windows(2).enumerate() {
        fs::write(journal(number), &bytes[part[0]..part[1]]).unwrap();
    }
    (directory, stream, texts)
}

/// State of a copy after damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    /// The open failed, and the copy is unchanged.
    Refused,
    /// Nothing is missing.
    Whole,
    /// The end of the stream is missing.
    Cut,
    /// The stream exists and cannot be read.
    Unreadable,
}

/// Opens a damaged copy. Permitted are an error, or a store with a stream that, if readable, has
/// lost at most its end.
async fn look_at(directory: &TemporaryDirectory, stream: StreamId, texts: &[String], what: &str) -> Outcome {
    let before = directory.contents();
    let opened = Disk::open_with(directory.options(Fsync::Always), "replica", SIZES);
    let Ok(Opened { store, .. }) = opened else {
        assert!(directory.contents() == before, "something was changed in a directory that was refused: {what}");
        return Outcome::Refused;
    };
    match store.read(stream, Seq(0), usize::MAX).wait().await {
        Ok(Read::Events(found)) => {
            let whole: Vec<_> = texts.iter().map(String::as_str).collect();
            let Read::Events(expected) = events(0, &whole[..found.len()]) else { unreachable!() };
            assert!(found == expected, "other events than were written: {what}");
            if found.len() == texts.len() { Outcome::Whole } else { Outcome::Cut }
        }
        Ok(Read::Gone) => Outcome::Cut,
        Ok(Read::Trimmed { .. }) => panic!("nothing was trimmed: {what}"),
        Err(_) => Outcome::Unreadable,
    }
}

/// Returns whether the file is a version of a keyspace that its `current` file no longer names. The
/// database removes such a file some time after the next version, or at the next open.
fn is_superseded_version(directory: &TemporaryDirectory, name: &Path) -> bool {
    let file = directory.0.join(name);
    let version = name.file_name().and_then(|name| name.to_str()?.strip_prefix('v')?.parse::<u64>().ok());
    let current = fs::read(file.with_file_name("current")).ok();
    let current = current.and_then(|bytes| Some(u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?)));
    matches!((version, current), (Some(version), Some(current)) if version < current)
}

/// Permitted states of a directory with one damaged file.
fn allowed(name: &Path, is_flip: bool) -> &'static [Outcome] {
    use Outcome::{Cut, Refused, Unreadable, Whole};
    let in_events = name.starts_with("db/keyspaces/2/tables");
    match name.to_str().unwrap() {
        "lock" => &[Whole],
        // The file ends with the end of a line.
        "format" => &[Refused, Whole],
        "db/lock" => &[Refused, Whole],
        "db/0.jnl" => &[Refused, Cut],
        _ if in_events && is_flip => &[Refused, Whole, Unreadable],
        _ => &[Refused],
    }
}

/// Damages the file in each way: removed, emptied, truncated at several places, and with flipped
/// bits at several places.
fn damages(bytes: &[u8]) -> Vec<(String, Option<Vec<u8>>, bool)> {
    let len = bytes.len();
    let mut damages = vec![("missing".into(), None, false), ("empty".into(), Some(Vec::new()), false)];
    let few = [0, len / 3, len / 2, len.saturating_sub(1)];
    let places: Vec<usize> = if len <= 64 { (0..len).collect() } else { few.to_vec() };
    for place in places {
        damages.push((format!("cut at {place}"), Some(bytes[..place].to_vec()), false));
        if let Some(byte) = bytes.get(place) {
            let mut flipped = bytes.to_vec();
            flipped[place] = byte ^ 0x10;
            damages.push((format!("flipped at {place}"), Some(flipped), true));
        }
    }
    damages
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_to_any_file_is_refused_with_nothing_changed_or_costs_the_end_alone() {
    let (directory, stream, texts) = written().await;
    let is_table = |file: &PathBuf| file.parent().is_some_and(|parent| parent.ends_with("tables"));
    assert!(directory.files().iter().filter(|file| is_table(file)).count() > 1, "nothing was flushed");
    assert_eq!(look_at(&directory.copy(), stream, &texts, "nothing").await, Outcome::Whole);
    let mut outcomes = std::collections::BTreeMap::<Outcome, u32>::new();
    for file in directory.files() {
        let name = file.strip_prefix(&directory.0).unwrap();
        let bytes = fs::read(&file).unwrap();
        for (how, damaged, is_flip) in damages(&bytes) {
            let what = format!("{} {how}", name.display());
            let copy = directory.copy();
            let file = copy.0.join(name);
            damaged.map_or_else(|| fs::remove_file(&file), |damaged| fs::write(&file, damaged)).unwrap();
            let outcome = look_at(&copy, stream, &texts, &what).await;
            let is_unused = outcome == Outcome::Whole && is_superseded_version(&directory, name);
            assert!(is_unused || allowed(name, is_flip).contains(&outcome), "{what}: {outcome:?}");
            *outcomes.entry(outcome).or_default() += 1;
        }
    }
    assert!(outcomes[&Outcome::Refused] > 0 && outcomes[&Outcome::Whole] > 0, "{outcomes:?}");
}

#[tokio::test]
async fn damage_to_a_journal_that_others_follow_is_refused_with_nothing_changed() {
    let (directory, stream, texts) = written_in_three().await;
    assert_eq!(look_at(&directory.copy(), stream, &texts, "nothing").await, Outcome::Whole);
    for number in 0..3 {
        let name = format!("db/{number}.jnl");
        let bytes = fs::read(directory.0.join(&name)).unwrap();
        for (how, damaged, _) in damages(&bytes) {
            if number == 0 && damaged.is_none() {
                // No file records that there was a journal before the oldest one.
                continue;
            }
            let what = format!("{name} {how}");
            let copy = directory.copy();
            let file = copy.0.join(&name);
            damaged.map_or_else(|| fs::remove_file(&file), |damaged| fs::write(&file, damaged)).unwrap();
            let outcome = look_at(&copy, stream, &texts, &what).await;
            let may_be_cut = number == 2 && outcome == Outcome::Cut;
            assert!(outcome == Outcome::Refused || may_be_cut, "{what}: {outcome:?}");
        }
    }
}

/// Appends the beginning of a write to the journal, as a power failure does. An open would cut it
/// off.
fn tear(directory: &TemporaryDirectory) {
    let journal = directory.0.join("db/0.jnl");
    let mut bytes = fs::read(&journal).unwrap();
    bytes.extend_from_slice(&[1, 1, 0, 0, 0, 99]);
    fs::write(journal, bytes).unwrap();
}

#[tokio::test]
async fn a_journal_that_ends_before_its_flushed_data_is_refused() {
    let (directory, stream, texts) = written().await;
    let journal = directory.0.join("db/0.jnl");
    let bytes = fs::read(&journal).unwrap();
    let begin = memchr::memmem::find(&bytes, b"data: 2 ").expect("the third event");
    fs::write(&journal, &bytes[..begin]).unwrap();
    let Err(error) = Disk::open_with(directory.options(Fsync::Always), "replica", SIZES) else {
        panic!("it was opened")
    };
    assert!(error.to_string().contains("its journal has lost its end"), "{error}");
    let outcome = look_at(&directory, stream, &texts, "cut before what was flushed").await;
    assert_eq!(outcome, Outcome::Refused);
}

#[tokio::test]
async fn a_table_in_the_place_of_another_is_refused_with_nothing_changed() {
    let (directory, stream, texts) = written().await;
    tear(&directory);
    let files = directory.files();
    let is_events = |file: &&PathBuf| file.parent().is_some_and(|folder| folder.ends_with("keyspaces/2/tables"));
    let tables: Vec<&PathBuf> = files.iter().filter(is_events).collect();
    assert!(tables.len() > 1, "there is one table");
    fs::copy(tables[0], tables[1]).unwrap();
    let before = directory.contents();
    let Err(error) = Disk::open_with(directory.options(Fsync::Always), "replica", SIZES) else {
        panic!("it was opened")
    };
    assert!(error.to_string().contains("is another table"), "{error}");
    assert!(directory.contents() == before);
    assert_eq!(look_at(&directory, stream, &texts, "another table").await, Outcome::Refused);
}

#[tokio::test]
async fn another_version_is_refused_before_a_journal_is_cut() {
    let (directory, stream, texts) = written().await;
    tear(&directory);
    assert_eq!(look_at(&directory.copy(), stream, &texts, "a torn write").await, Outcome::Whole);
    for (name, text) in [("db/version", "FJL\x04"), ("db/version", ""), ("db/keyspaces/1/version", "LSM\x02")] {
        let copy = directory.copy();
        fs::write(copy.0.join(name), text).unwrap();
        assert_eq!(look_at(&copy, stream, &texts, name).await, Outcome::Refused, "{name}");
    }
}

#[tokio::test]
async fn a_folder_that_is_missing_is_refused_with_nothing_changed() {
    let (directory, stream, texts) = written().await;
    tear(&directory);
    for id in 0..4 {
        for folder in [format!("db/keyspaces/{id}"), format!("db/keyspaces/{id}/tables")] {
            let copy = directory.copy();
            fs::remove_dir_all(copy.0.join(&folder)).unwrap();
            assert_eq!(look_at(&copy, stream, &texts, &folder).await, Outcome::Refused, "{folder}");
        }
    }
}

#[tokio::test]
async fn a_name_the_database_does_not_know_is_refused_with_nothing_changed() {
    let (directory, stream, texts) = written().await;
    tear(&directory);
    for name in ["db/x.jnl", "db/2.jnl", "db/keyspaces/1/tables/x", "db/keyspaces/1/version"] {
        let copy = directory.copy();
        fs::write(copy.0.join(name), "").unwrap();
        assert_eq!(look_at(&copy, stream, &texts, name).await, Outcome::Refused, "{name}");
    }
    for name in ["db/keyspaces/x", "db/keyspaces/9"] {
        let copy = directory.copy();
        fs::create_dir(copy.0.join(name)).unwrap();
        assert_eq!(look_at(&copy, stream, &texts, name).await, Outcome::Refused, "{name}");
    }
}

#[tokio::test]
async fn a_directory_after_a_crash_is_opened() {
    let (directory, stream, texts) = written().await;
    // Unfinished files: a table and a manifest, a `current` that was not renamed yet, and a journal
    // just begun.
    for name in ["db/keyspaces/2/tables/999", "db/keyspaces/2/v999", "db/keyspaces/2/.tmpAbCdEf", "db/1.jnl"] {
        let copy = directory.copy();
        fs::write(copy.0.join(name), "").unwrap();
        assert_eq!(look_at(&copy, stream, &texts, name).await, Outcome::Whole, "{name}");
    }
}

#[tokio::test]
async fn a_refused_directory_is_not_given_a_lock() {
    let (directory, stream, texts) = written().await;
    fs::remove_file(directory.0.join("lock")).unwrap();
    fs::remove_file(directory.0.join("db/keyspaces/1/current")).unwrap();
    assert_eq!(look_at(&directory, stream, &texts, "two files missing").await, Outcome::Refused);
}

/// Returns the place of the last bytes of a journal that are not zero.
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
