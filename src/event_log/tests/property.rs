//! Random interleavings of a writer, its store and readers that poll only when they were woken.

use proptest::prelude::*;

use super::slow::Slow;
use super::*;

#[derive(Clone, Debug)]
enum Step {
    /// The upstream sends this many messages at once, or the writer continues if it waits for the
    /// store.
    Write(usize),
    /// The store accepts what it was sent.
    Store,
    /// The reader runs if it was woken, and reads about this much.
    Run(usize),
    /// The connection breaks, and the client resumes.
    Reconnect,
    /// The client resumes before the old connection is known to be gone.
    TakeOver,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..5usize).prop_map(Step::Write),
        5 => Just(Step::Store),
        8 => prop_oneof![Just(1), 1..400usize, Just(usize::MAX)].prop_map(Step::Run),
        1 => Just(Step::Reconnect),
        1 => Just(Step::TakeOver),
    ];
    prop::collection::vec(step, 1..60)
}

/// A reader as a well-behaved task: it polls at its start and when it was woken, never else.
struct Task {
    client: Client,
    runnable: bool,
}

impl Task {
    fn attach(stream: &Arc<Stream>, cursor: Seq) -> Self {
        Self { client: Client::attach(stream, cursor), runnable: true }
    }

    fn run(&mut self, budget: usize) {
        self.runnable |= self.client.bell.rings() > 0;
        if self.runnable {
            self.runnable = self.client.read(budget).is_ready();
        }
    }

    /// Runs while it is woken.
    fn run_out(&mut self) {
        self.runnable |= self.client.bell.rings() > 0;
        while self.runnable {
            self.runnable = self.client.read(usize::MAX).is_ready();
        }
    }
}

proptest! {
    #[test]
    fn readers_that_poll_only_when_woken_get_everything_once(steps in steps(), with_store in any::<bool>()) {
        let store = with_store.then(Slow::new);
        let log = log_with(store.clone().map(|store| store as Arc<dyn Store>));
        let (stream, writer) = open(&log);
        let (mut said, mut text) = (0, String::new());
        let mut task = Task::attach(&stream, Seq(0));
        let mut old = Vec::new();
        let mut update: Option<ByHand<Pin<Box<dyn Future<Output = ()> + '_>>>> = None;
        // In the end the store accepts everything and the reader reads everything.
        let end = [Step::Store, Step::Write(0), Step::Store, Step::Write(0)];
        for step in steps.into_iter().chain(end) {
            match step {
                Step::Write(count) => {
                    let mut going = update.take().unwrap_or_else(|| {
                        let first = said + 1;
                        said += count;
                        let messages: Vec<_> = (first..=said).map(note).collect();
                        ByHand::new(Box::pin(writer.update(move |machine, now| {
                            messages.iter().for_each(|message| machine.handle_message(b"", message.as_bytes(), now));
                        })))
                    });
                    update = if going.poll().is_pending() { Some(going) } else { None };
                }
                Step::Store => if let Some(store) = store.as_ref().filter(|_| update.is_some()) {
                    store.let_one_through();
                },
                Step::Run(budget) => task.run(budget),
                Step::Reconnect | Step::TakeOver => {
                    text.push_str(task.client.text());
                    let cursor = task.client.cursor;
                    if matches!(step, Step::TakeOver) {
                        let older = std::mem::replace(&mut task, Task::attach(&stream, cursor));
                        old.push(older);
                    } else {
                        drop(task);
                        task = Task::attach(&stream, cursor);
                    }
                }
            }
        }
        prop_assert!(update.is_none(), "the writer is done");
        task.run_out();
        text.push_str(task.client.text());
        let wanted: String = (1..=said).map(|n| wire(&stream, n as u64, &note(n)).replace("event: message\n", "")).collect();
        prop_assert_eq!(text, wanted);
        for older in &mut old {
            let had = older.client.text().len();
            prop_assert!(matches!(older.client.read_all(), Poll::Ready(ReadOutcome::TakenOver(_))));
            prop_assert_eq!(older.client.text().len(), had, "two connections have the same event");
        }
    }
}
