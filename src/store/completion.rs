//! Delivery of results from a store's own thread to the tasks that wait for them.
//!
//! Waking a task from outside its runtime takes a lock and a system call. So the results of a group
//! of calls are passed on once for each runtime, to a task there that completes them all. One such
//! wake-up serves any number of waiting calls.
//!
//! Absent: the order of results, which is the order of the groups, and a bound, since each waiting
//! call has one result.

use std::sync::{Arc, Mutex};

use dashmap::DashMap;
use tokio::runtime::{Handle, Id};
use tokio::sync::Notify;

use mcp_resume_base::sync;

/// A result with the address of its receiver.
pub(super) trait Complete: Send + 'static {
    /// Passes the result to its receiver.
    fn complete(self);
}

/// Queues of one store, one for each runtime that calls it. Dropping them ends their tasks.
pub(super) struct Completions<C>(DashMap<Id, Arc<Queue<C>>>);

/// Results for the callers of one runtime.
pub(super) struct Queue<C> {
    state: Mutex<State<C>>,
    has_results: Notify,
}

struct State<C> {
    waiting: Vec<C>,
    /// True while the task of the queue runs.
    is_open: bool,
}

impl<C> Default for Completions<C> {
    fn default() -> Self {
        Self(DashMap::new())
    }
}

impl<C: Complete> Completions<C> {
    /// Returns the queue for callers in this runtime. Without a runtime, the thread that delivers a
    /// result also completes it.
    pub(super) fn here(&self) -> Arc<Queue<C>> {
        let Ok(runtime) = Handle::try_current() else { return Arc::new(Queue::new(false)) };
        if let Some(queue) = self.0.get(&runtime.id()) {
            return queue.clone();
        }
        let entry = self.0.entry(runtime.id()).or_insert_with(|| {
            let queue = Arc::new(Queue::new(true));
            runtime.spawn(run(Closing(queue.clone())));
            queue
        });
        entry.clone()
    }
}

impl<C> Drop for Completions<C> {
    fn drop(&mut self) {
        for queue in self.0.iter() {
            queue.lock().is_open = false;
            queue.has_results.notify_one();
        }
    }
}

impl<C> Queue<C> {
    fn new(is_open: bool) -> Self {
        Self { state: Mutex::new(State { waiting: Vec::new(), is_open }), has_results: Notify::new() }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State<C>> {
        sync::lock(&self.state)
    }
}

impl<C: Complete> Queue<C> {
    /// Hands results over to the runtime of the callers.
    fn push(&self, mut results: Vec<C>) {
        let mut state = self.lock();
        if !state.is_open {
            // Not locked while callers are woken.
            drop(state);
            return complete_all(results);
        }
        let is_first = state.waiting.is_empty();
        state.waiting.append(&mut results);
        // The woken task takes the lock.
        drop(state);
        if is_first {
            self.has_results.notify_one();
        }
    }
}

/// Hands every result over to the runtime of its queue.
pub(super) fn deliver<C: Complete>(results: impl IntoIterator<Item = (Arc<Queue<C>>, C)>) {
    let mut sorted: Vec<(Arc<Queue<C>>, Vec<C>)> = Vec::new();
    for (queue, result) in results {
        // There are as many queues as runtimes: a handful.
        match sorted.iter_mut().find(|(other, _)| Arc::ptr_eq(other, &queue)) {
            Some((_, results)) => results.push(result),
            None => sorted.push((queue, vec![result])),
        }
    }
    for (queue, results) in sorted {
        queue.push(results);
    }
}

/// A queue together with its task. Once the task is gone, results are completed by the delivering
/// thread.
struct Closing<C: Complete>(Arc<Queue<C>>);

impl<C: Complete> Drop for Closing<C> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.is_open = false;
        let waiting = std::mem::take(&mut state.waiting);
        // Not locked while callers are woken.
        drop(state);
        complete_all(waiting);
    }
}

fn complete_all<C: Complete>(results: Vec<C>) {
    for result in results {
        result.complete();
    }
}

/// Completes the results of a queue until it is closed.
async fn run<C: Complete>(queue: Closing<C>) {
    loop {
        queue.0.has_results.notified().await;
        let mut state = queue.0.lock();
        let waiting = std::mem::take(&mut state.waiting);
        let is_open = state.is_open;
        // Not locked while callers are woken.
        drop(state);
        complete_all(waiting);
        if !is_open {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    struct Numbered(mpsc::Sender<u32>, u32);

    impl Complete for Numbered {
        fn complete(self) {
            self.0.send(self.1).unwrap();
        }
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().build().unwrap()
    }

    #[test]
    fn every_runtime_completes_its_own_results_in_order() {
        let completions = Completions::default();
        let (here, there) = (runtime(), runtime());
        let ((tell_a, a), (tell_b, b)) = (mpsc::channel(), mpsc::channel());
        let queue_a = here.block_on(async { completions.here() });
        let queue_b = there.block_on(async { completions.here() });
        assert!(Arc::ptr_eq(&queue_a, &here.block_on(async { completions.here() })));
        deliver([
            (queue_a.clone(), Numbered(tell_a.clone(), 1)),
            (queue_b, Numbered(tell_b, 2)),
            (queue_a, Numbered(tell_a, 3)),
        ]);
        assert!(a.try_recv().is_err() && b.try_recv().is_err(), "their runtimes do not run");
        here.block_on(tokio::task::yield_now());
        assert_eq!(a.try_iter().collect::<Vec<_>>(), [1, 3]);
        there.block_on(tokio::task::yield_now());
        assert_eq!(b.try_iter().collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn a_result_is_completed_without_its_runtime_and_without_the_store() {
        let (sender, completed) = mpsc::channel();
        let completions = Completions::default();
        let gone = runtime();
        let queue = gone.block_on(async { completions.here() });
        deliver([(queue.clone(), Numbered(sender.clone(), 1))]);
        drop(gone);
        deliver([(queue, Numbered(sender.clone(), 2))]);
        deliver([(completions.here(), Numbered(sender.clone(), 3))]);
        let closing = runtime();
        let queue = closing.block_on(async { completions.here() });
        deliver([(queue.clone(), Numbered(sender.clone(), 4))]);
        drop(completions);
        closing.block_on(tokio::task::yield_now());
        deliver([(queue, Numbered(sender, 5))]);
        assert_eq!(completed.iter().collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    }
}
