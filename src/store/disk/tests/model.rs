//! Random calls to the disk store and to the store in memory, with restarts, failures and time
//! between them.

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::*;
use crate::test_store::TestStore;

#[derive(Clone, Debug)]
enum Step {
    Create { stream: u8, keep: u64 },
    Append { stream: u8, stale: bool, behind: u64, texts: Vec<String>, state: Option<u8> },
    Seal { stream: u8, stale: bool, keep: u64 },
    TakeOver { stream: u8 },
    Trim { stream: u8, stale: bool, upto: u64 },
    Keep { stream: u8, keep: u64 },
    Expire { stream: u8 },
    Put { key: u8, value: u8, keep: u64 },
    Claim { key: u8, value: u8, keep: u64 },
    Replace { key: u8, before: u8, value: u8, keep: u64 },
    Remove { key: u8 },
    Advance { seconds: u64 },
    Clean,
    Fail,
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let (stream, keep, stale) = (0..3_u8, 1..60_u64, proptest::bool::weighted(0.1));
    let texts = proptest::collection::vec("[ab]{1,3}", 0..4);
    let behind = prop_oneof![4 => Just(0_u64), 1 => 0..5_u64];
    prop_oneof![
        3 => (stream.clone(), keep.clone()).prop_map(|(stream, keep)| Step::Create { stream, keep }),
        12 => (stream.clone(), stale, behind, texts, any::<Option<u8>>())
            .prop_map(|(stream, stale, behind, texts, state)| Step::Append { stream, stale, behind, texts, state }),
        1 => (stream.clone(), stale, keep.clone()).prop_map(|(stream, stale, keep)| Step::Seal { stream, stale, keep }),
        1 => stream.clone().prop_map(|stream| Step::TakeOver { stream }),
        3 => (stream.clone(), stale, 0..12_u64).prop_map(|(stream, stale, upto)| Step::Trim { stream, stale, upto }),
        1 => (stream.clone(), keep.clone()).prop_map(|(stream, keep)| Step::Keep { stream, keep }),
        1 => stream.prop_map(|stream| Step::Expire { stream }),
        2 => (0..3_u8, 0..4_u8, keep.clone()).prop_map(|(key, value, keep)| Step::Put { key, value, keep }),
        2 => (0..3_u8, 0..4_u8, keep.clone()).prop_map(|(key, value, keep)| Step::Claim { key, value, keep }),
        2 => (0..3_u8, 0..4_u8, 0..4_u8, keep).prop_map(|(key, before, value, keep)| Step::Replace { key, before, value, keep }),
        1 => (0..3_u8).prop_map(|key| Step::Remove { key }),
        2 => (0..20_u64).prop_map(|seconds| Step::Advance { seconds }),
        1 => Just(Step::Clean),
        1 => Just(Step::Fail),
        2 => Just(Step::Restart),
    ]
}

fn id(stream: u8) -> StreamId {
    StreamId::from_bytes([stream; 12])
}

/// No expiry falls on a full second, so that the order of items due at once does not matter.
fn seconds(seconds: u64) -> Duration {
    Duration::from_millis(seconds * 1000 + 500)
}

/// Result of a call, for comparison.
fn shown<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    match result {
        Ok(value) => format!("{value:?}"),
        Err(error) => error.to_string(),
    }
}

async fn call(store: &dyn Store, step: &Step, epoch: WriterEpoch, tail: u64) -> String {
    let epoch_of = |stale: bool| WriterEpoch(epoch.0 - u64::from(stale && epoch.0 > 0));
    match step {
        Step::Create { stream, keep } => {
            shown(store.create(id(*stream), &[*stream], Seq(0), seconds(*keep)).wait().await)
        }
        Step::Append { stream, stale, behind, texts, state } => {
            let after = tail.saturating_sub(*behind);
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            let state = state.map(|state| [state]);
            let state = state.as_ref().map(|state| &state[..]);
            let epoch = epoch_of(*stale);
            shown(store.append(id(*stream), epoch, Seq(after), &batch(after, &texts), state).wait().await)
        }
        Step::Seal { stream, stale, keep } => {
            shown(store.seal(id(*stream), epoch_of(*stale), b"end", seconds(*keep)).wait().await)
        }
        Step::TakeOver { stream } => shown(store.take_over(id(*stream)).wait().await),
        Step::Trim { stream, stale, upto } => {
            // A stream that is gone is not trimmed, and an error for it is permitted.
            let _ = store.trim(id(*stream), epoch_of(*stale), Seq(*upto)).wait().await;
            String::new()
        }
        Step::Keep { stream, keep } => shown(store.keep(id(*stream), seconds(*keep)).wait().await),
        Step::Expire { stream } => shown(store.expire(id(*stream)).wait().await),
        Step::Put { key, value, keep } => shown(store.put(&[*key], &[*value], seconds(*keep)).wait().await),
        Step::Claim { key, value, keep } => shown(store.claim(&[*key], &[*value], seconds(*keep)).wait().await),
        Step::Replace { key, before, value, keep } => {
            shown(store.replace(&[*key], &[*before], &[*value], seconds(*keep)).wait().await)
        }
        Step::Remove { key } => shown(store.remove(&[*key]).wait().await),
        Step::Advance { .. } | Step::Clean | Step::Fail | Step::Restart => String::new(),
    }
}

/// Returns everything that can be read.
async fn look(store: &dyn Store) -> Vec<String> {
    let mut seen = Vec::new();
    for stream in (0..3).map(id) {
        seen.push(shown(store.load(stream).wait().await));
        for (after, limit) in [(0, usize::MAX), (2, 20), (3, 0), (99, 9)] {
            seen.push(shown(store.read(stream, Seq(after), limit).wait().await));
        }
    }
    let open = store.open_streams(Owner::from_name("replica")).wait().await.unwrap();
    for stream in (0..3).map(id) {
        let is_there = store.load(stream).wait().await.unwrap().is_some();
        seen.push(format!("{}", is_there && open.contains(&stream)));
    }
    for key in 0..3 {
        seen.push(shown(store.get(&[key]).wait().await));
    }
    seen
}

async fn compare(steps: Vec<Step>) -> TestCaseResult {
    let directory = TemporaryDirectory::new();
    let model = TestStore::of(Owner::from_name("replica"));
    let mut store = directory.open();
    for (index, step) in steps.iter().enumerate() {
        match step {
            Step::Advance { seconds } => tokio::time::advance(Duration::from_secs(*seconds)).await,
            Step::Clean => store.clean().await,
            Step::Fail => store.fail(false).await,
            Step::Restart => {
                drop(store);
                store = directory.open();
            }
            Step::Append { stream, .. } | Step::Seal { stream, .. } | Step::Trim { stream, .. } => {
                let there = model.load(id(*stream)).wait().await.unwrap();
                let (epoch, tail) = there.map_or((WriterEpoch(0), 0), |there| (there.epoch, there.tail.0));
                let expected = call(&model, step, epoch, tail).await;
                prop_assert_eq!(call(&*store, step, epoch, tail).await, expected, "step {}", index);
            }
            step => {
                let expected = call(&model, step, WriterEpoch(0), 0).await;
                prop_assert_eq!(call(&*store, step, WriterEpoch(0), 0).await, expected, "step {}", index);
            }
        }
        prop_assert_eq!(look(&*store).await, look(&model).await, "after step {}", index);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    #[test]
    fn it_answers_as_the_store_in_memory(steps in proptest::collection::vec(step(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(compare(steps))?;
    }
}
