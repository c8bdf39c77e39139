//! Ownership of the directory.

use super::*;

fn refused(directory: &TemporaryDirectory) -> OpenError {
    let before = directory.contents();
    let Err(error) = Disk::open(directory.options(Fsync::Always), "replica") else { panic!("it was opened") };
    assert!(before == directory.contents(), "something was changed in a directory that was refused: {error}");
    error
}

#[test]
fn the_name_and_the_keys_are_those_of_the_first_open() {
    let directory = TemporaryDirectory::new();
    let options = || directory.options(Fsync::Always);
    let first = Disk::open(options(), "first").unwrap();
    let (keys, name) = (first.keys, first.name);
    drop(first.store);
    let second = Disk::open(options(), "second").unwrap();
    assert_eq!((&*name, &*second.name), ("first", "first"));
    let parts = |keys: &Keys| (keys.epoch, keys.signing, keys.principal);
    assert_eq!(parts(&keys), parts(&second.keys));
    let other = TemporaryDirectory::new().opened();
    assert_ne!(parts(&keys), parts(&other.keys));
}

#[test]
fn another_process_is_refused_while_one_has_it_open() {
    let directory = TemporaryDirectory::new();
    let store = directory.open();
    let Err(error) = Disk::open(directory.options(Fsync::Always), "replica") else { panic!("it was opened twice") };
    assert!(matches!(error, OpenError::Locked { .. }), "{error}");
    drop(store);
    directory.open();
}

#[test]
fn a_foreign_directory_is_refused() {
    let directory = TemporaryDirectory::new();
    fs::create_dir_all(&directory.0).unwrap();
    fs::write(directory.0.join("thesis.txt"), "years of work").unwrap();
    let error = refused(&directory);
    assert!(matches!(&error, OpenError::Foreign { found, .. } if found == "thesis.txt"), "{error}");
}

#[test]
fn a_newer_format_is_refused() {
    let directory = TemporaryDirectory::new();
    drop(directory.open());
    fs::write(directory.0.join("format"), "mcp-resume disk store, format 2\n").unwrap();
    let error = refused(&directory);
    assert!(matches!(error, OpenError::Format { found: 2, known: 1, .. }), "{error}");
}

#[test]
fn the_root_of_an_empty_volume_is_taken() {
    let directory = TemporaryDirectory::new();
    fs::create_dir_all(directory.0.join("lost+found")).unwrap();
    directory.open();
}

#[test]
fn damaged_keys_are_refused() {
    let directory = TemporaryDirectory::new();
    drop(directory.open());
    let path = directory.0.join("keys");
    let keys = fs::read_to_string(&path).unwrap();
    let other_digit = |digit: char| if digit == '1' { '2' } else { '1' };
    let at = keys.find("\"epoch\":").unwrap() + "\"epoch\":".len();
    let changed = format!("{}{}{}", &keys[..at], other_digit(keys[at..].chars().next().unwrap()), &keys[at + 1..]);
    for text in ["", "{}", "\0", &keys[..keys.len() / 2], &changed] {
        fs::write(&path, text).unwrap();
        let error = refused(&directory);
        assert!(matches!(error, OpenError::Keys { .. }), "{error}");
    }
    fs::remove_file(&path).unwrap();
    assert!(matches!(refused(&directory), OpenError::Keys { .. }));
    fs::write(&path, keys).unwrap();
    directory.open();
}

#[test]
fn a_database_without_its_journal_or_version_is_refused() {
    for (name, told) in [("0.jnl", "its journal is missing"), ("version", "the file `version` is missing")] {
        let directory = TemporaryDirectory::new();
        drop(directory.open());
        fs::remove_file(directory.0.join("db").join(name)).unwrap();
        let error = refused(&directory).to_string();
        assert!(error.contains(told), "{error}");
    }
    let directory = TemporaryDirectory::new();
    drop(directory.open());
    fs::write(directory.0.join("db/version"), "another").unwrap();
    let error = refused(&directory).to_string();
    assert!(error.contains("or says another version"), "{error}");
}

#[test]
fn keys_of_other_contents_are_refused() {
    let (one, two) = (TemporaryDirectory::new(), TemporaryDirectory::new());
    drop((one.open(), two.open()));
    fs::copy(two.0.join("keys"), one.0.join("keys")).unwrap();
    let error = refused(&one).to_string();
    assert!(error.contains("it belongs to other keys"), "{error}");
}

#[test]
fn contents_that_are_lost_are_new_ones_under_the_old_name() {
    let directory = TemporaryDirectory::new();
    let first = Disk::open(directory.options(Fsync::Always), "first").unwrap();
    drop(first.store);
    fs::remove_dir_all(directory.0.join("db")).unwrap();
    let second = Disk::open(directory.options(Fsync::Always), "second").unwrap();
    assert_eq!(second.name, "first");
    assert_ne!(first.keys.epoch, second.keys.epoch);
}

#[test]
fn an_interrupted_first_open_is_completed() {
    let whole = TemporaryDirectory::new();
    drop(whole.open());
    for steps in 1..=4 {
        let directory = TemporaryDirectory::new();
        fs::create_dir_all(&directory.0).unwrap();
        for name in ["lock", "format", "keys"].into_iter().take(steps) {
            fs::copy(whole.0.join(name), directory.0.join(name)).unwrap();
        }
        fs::write(directory.0.join("unwritten"), "half of it").unwrap();
        if steps == 4 {
            fs::create_dir_all(directory.0.join("db.new")).unwrap();
            fs::write(directory.0.join("db.new/0.jnl"), "torn").unwrap();
        }
        directory.open();
    }
}

#[cfg(unix)]
#[test]
fn other_users_cannot_read_it() {
    use std::os::unix::fs::PermissionsExt;
    let directory = TemporaryDirectory::new();
    drop(directory.open());
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&directory.0), mode(&directory.0.join("keys"))), (0o700, 0o600));
}
