//! Pumps that their request handler polls.
//!
//! A call with an immediate response needs no task of its own: its handler, which waits for the
//! head, polls the pump meanwhile. A pump that is not finished by then becomes a task. So does one
//! whose handler is dropped because its client disconnected. In either case it continues as if it
//! had been a task from the beginning.

use std::future::Future;
use std::pin::Pin;
use std::task::Context;

use tokio::runtime::Handle;

/// A pump in progress. Dropped before it is finished, it continues in a separate task.
#[derive(Default)]
pub struct InlineTask(Option<Pin<Box<dyn Future<Output = ()> + Send>>>);

impl InlineTask {
    /// Wraps a pump that was not polled yet.
    pub fn new(pump: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(Some(Box::pin(pump)))
    }

    /// Polls the pump. The caller's task is woken when the pump can continue.
    pub fn poll(&mut self, cx: &mut Context<'_>) {
        if let Some(pump) = &mut self.0
            && pump.as_mut().poll(cx).is_ready()
        {
            self.0 = None;
        }
    }

    /// Returns true once the pump is finished.
    pub fn is_finished(&self) -> bool {
        self.0.is_none()
    }
}

impl Drop for InlineTask {
    fn drop(&mut self) {
        // There is no runtime at the end of the process.
        if let (Some(pump), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(pump);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Poll;

    use tokio::sync::oneshot;

    use super::*;

    /// Returns a pump that waits for the first channel and then sends on the second.
    fn pump() -> (InlineTask, oneshot::Sender<()>, oneshot::Receiver<()>) {
        let (go, gone) = oneshot::channel::<()>();
        let (finish, finished) = oneshot::channel();
        let running = InlineTask::new(async move {
            let _ = gone.await;
            let _ = finish.send(());
        });
        (running, go, finished)
    }

    #[tokio::test]
    async fn a_pump_is_finished_by_its_poller() {
        let (mut running, go, mut finished) = pump();
        let mut go = Some(go);
        poll_fn(|cx| {
            running.poll(cx);
            // This wakes the task for the second poll.
            if let Some(go) = go.take() {
                let _ = go.send(());
            }
            if running.is_finished() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        assert_eq!(finished.try_recv(), Ok(()));
    }

    #[tokio::test]
    async fn a_pump_that_is_dropped_before_its_end_continues_as_a_task() {
        for polls in 0..2 {
            let (mut running, go, finished) = pump();
            poll_fn(|cx| {
                for _ in 0..polls {
                    running.poll(cx);
                }
                Poll::Ready(())
            })
            .await;
            drop(running);
            go.send(()).expect("it waits");
            assert_eq!(finished.await, Ok(()));
        }
    }

    #[test]
    fn a_pump_is_dropped_without_a_runtime() {
        let (running, go, _) = pump();
        drop(running);
        assert!(go.send(()).is_err());
    }
}
