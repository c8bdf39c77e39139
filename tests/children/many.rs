//! Many servers at once, and one after the other.

use super::*;

fn server() -> String {
    format!("{READY}; exec sed d")
}

#[tokio::test]
async fn a_hundred_servers_that_start_at_once_are_all_there_and_all_end() {
    let bounds = [("UPSTREAM__MAX_CHILDREN", "100"), ("UPSTREAM__STARTS_PER_MINUTE", "100")];
    let adapter = Adapter::start(&server(), &bounds).await;
    let mut starting = Vec::new();
    for _ in 0..100 {
        starting.push(Request::post(initialize(V2025_11)).start(adapter.proxy.addr).await);
    }
    for client in starting {
        let head = tokio::time::timeout(6 * LIMIT, client.response()).await.expect("a start in time");
        assert_eq!(head.status, 200);
    }
    adapter.mark.until_leaders::<100>().await;
    let mark = adapter.mark;
    adapter.proxy.stop().await;
    until("they have ended", async || mark.processes().is_empty()).await;
}

#[tokio::test]
async fn a_thousand_sessions_that_are_left_have_no_more_servers_than_are_allowed() {
    const AT_ONCE: usize = 100;
    let bounds = [("UPSTREAM__MAX_CHILDREN", "100"), ("UPSTREAM__STARTS_PER_MINUTE", "10000")];
    let adapter = Adapter::start(&server(), &bounds).await;
    for _ in 0..1000 / AT_ONCE {
        let opening: Vec<_> = (0..AT_ONCE).map(|_| adapter.initialize()).collect();
        for opened in all_at_once(opening).await {
            assert_eq!(opened.status, 200);
        }
    }
    adapter.mark.until_leaders::<AT_ONCE>().await;
    let mark = adapter.mark;
    adapter.proxy.stop().await;
    until("they have ended", async || mark.processes().is_empty()).await;
}

/// Runs all at once, in this task.
async fn all_at_once<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut waiting: Vec<_> = futures.into_iter().map(Box::pin).map(Some).collect();
    let mut done: Vec<Option<F::Output>> = waiting.iter().map(|_| None).collect();
    std::future::poll_fn(|cx| {
        for (future, output) in waiting.iter_mut().zip(&mut done) {
            if let Some(running) = future
                && let std::task::Poll::Ready(value) = running.as_mut().poll(cx)
            {
                (*output, *future) = (Some(value), None);
            }
        }
        if waiting.iter().all(Option::is_none) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    done.into_iter().flatten().collect()
}
