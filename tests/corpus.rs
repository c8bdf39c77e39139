//! The cases of the fuzz targets, for the inputs in `fuzz/corpus` and for small changes of these.
//! Needs no fuzzer: it is the same code without the search for inputs, which fuzz/README.md
//! describes.
//!
//! The changes are random with a fixed seed, so each run has the same inputs.

// A case asserts; it has no errors.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use proptest::collection::vec;
use proptest::prelude::{Strategy, any, prop_oneof};
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

/// Number of changed inputs for each input of a corpus.
const CHANGED: u32 = 200;
/// Largest number of edits that make one changed input.
const EDITS: usize = 6;
/// Bytes that have a meaning in one of the formats.
const SIGNIFICANT: &[u8] = b"\0\t\n\r \"#%*+,-./09:;=?AZ[\\]_az{}~\x7f\x80\xe2\xff";

macro_rules! cases {
    ($($name:ident)+) => {
        #[path = "../fuzz/cases"]
        mod cases {
            $(pub(crate) mod $name;)+
        }

        /// Names of the cases that run here.
        const NAMES: &[&str] = &[$(stringify!($name)),+];

        $(
            #[test]
            fn $name() {
                holds(stringify!($name), cases::$name::run);
            }
        )+
    };
}

cases! { channel config event_id headers http1 jsonrpc routing session_refusal sse upstream_url }

/// Change of an input.
#[derive(Debug, Clone)]
enum Edit {
    Replace(Index, u8),
    Insert(Index, u8),
    Remove(Index),
    /// Repeats the bytes between two places behind the second one.
    Repeat(Index, Index),
}

impl Edit {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Insert(at, byte) => bytes.insert(at.index(bytes.len() + 1), *byte),
            _ if bytes.is_empty() => {}
            Self::Replace(at, byte) => {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            Self::Remove(at) => drop(bytes.remove(at.index(bytes.len()))),
            Self::Repeat(one, other) => {
                let (one, other) = (one.index(bytes.len()), other.index(bytes.len()));
                let repeated = bytes[one.min(other)..one.max(other)].to_vec();
                bytes.splice(one.max(other)..one.max(other), repeated);
            }
        }
    }
}

fn edit() -> impl Strategy<Value = Edit> {
    let byte = || prop_oneof![select(SIGNIFICANT), any::<u8>()];
    prop_oneof![
        4 => (any::<Index>(), byte()).prop_map(|(at, byte)| Edit::Replace(at, byte)),
        2 => (any::<Index>(), byte()).prop_map(|(at, byte)| Edit::Insert(at, byte)),
        2 => any::<Index>().prop_map(Edit::Remove),
        1 => any::<(Index, Index)>().prop_map(|(one, other)| Edit::Repeat(one, other)),
    ]
}

/// Runs a case with each input of its corpus, with each beginning of the input, and with changed
/// ones.
fn holds(name: &str, run: fn(&[u8])) {
    let corpus = fuzz().join("corpus").join(name);
    let inputs = entries(&corpus);
    assert!(!inputs.is_empty(), "{} has no input", corpus.display());
    for file in inputs {
        let file = corpus.join(file);
        let input = fs::read(&file).unwrap();
        for length in (0..=input.len()).rev() {
            let beginning = &input[..length];
            assert!(
                catch_unwind(|| run(beginning)).is_ok(),
                "{name} fails for the first {length} of {} bytes of {}",
                input.len(),
                file.display()
            );
        }
        changed(name, run, &file, &input);
    }
}

/// Runs a case with changes of an input. A failing change is reduced to the least that fails.
fn changed(name: &str, run: fn(&[u8]), file: &Path, input: &[u8]) {
    let config = Config { cases: CHANGED, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &[1; 32]));
    let inputs = vec(edit(), 1..=EDITS).prop_map(|edits| {
        let mut bytes = input.to_vec();
        edits.iter().for_each(|edit| edit.apply(&mut bytes));
        bytes
    });
    let result = runner.run(&inputs, |bytes| {
        catch_unwind(|| run(&bytes))
            .map_err(|_| TestCaseError::fail(format!("the input is b\"{}\"", bytes.escape_ascii())))
    });
    if let Err(error) = result {
        panic!("{name} fails for a change of {}: {error}", file.display());
    }
}

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz")
}

/// The names of the files and folders in a folder.
fn entries(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn each_target_has_a_case_and_a_corpus() {
    let names: BTreeSet<String> = NAMES.iter().map(|name| (*name).to_owned()).collect();
    let files: BTreeSet<String> = names.iter().map(|name| format!("{name}.rs")).collect();
    assert_eq!(entries(&fuzz().join("cases")), files, "fuzz/cases, and the cases of this test");
    assert_eq!(entries(&fuzz().join("targets")), files, "fuzz/targets, and the cases of this test");
    assert_eq!(entries(&fuzz().join("corpus")), names, "fuzz/corpus, and the cases of this test");

    let manifest: toml::Table = fs::read_to_string(fuzz().join("Cargo.toml")).unwrap().parse().unwrap();
    let programs = manifest["bin"].as_array().unwrap().iter().map(|program| {
        let (name, path) = (program["name"].as_str().unwrap(), program["path"].as_str().unwrap());
        assert_eq!(path, format!("targets/{name}.rs"));
        name.to_owned()
    });
    assert_eq!(programs.collect::<BTreeSet<_>>(), names, "the programs of fuzz/Cargo.toml, and the cases of this test");
}

#[test]
fn each_target_runs_its_case_alone() {
    for name in NAMES {
        let target = fs::read_to_string(fuzz().join("targets").join(format!("{name}.rs"))).unwrap();
        let expected = format!(
            "#![no_main]\n\n#[path = \"../cases/{name}.rs\"]\nmod case;\n\n\
             libfuzzer_sys::fuzz_target!(|bytes: &[u8]| case::run(bytes));\n"
        );
        assert_eq!(target, expected, "fuzz/targets/{name}.rs");
    }
}
