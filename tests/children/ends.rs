//! Ends of servers, of the proxy, and of its guard.

use super::*;
use crate::table::{children_of, is_running, kill};

/// Servers by the way in which they are hard to end.
fn servers() -> Vec<(&'static str, String)> {
    let stubborn = "trap '' TERM; while :; do sleep 1000; done";
    vec![
        ("ends with its input", format!("{READY}; exec sed d")),
        ("ignores the end of its input and SIGTERM", format!("{READY}; {stubborn}")),
        ("leaves a process of its group behind", format!("(trap '' TERM; sleep 1000) & {READY}; exec sed d")),
        ("is started by a process that waits for it", format!("({READY}; exec sed d); exit 3")),
        ("closes its output and lives", format!("{READY}; read -r line; exec >&-; {stubborn}")),
    ]
}

#[tokio::test]
async fn no_child_outlives_a_proxy_that_is_killed() {
    for (which, script) in servers() {
        let adapter = Adapter::start(&script, &[]).await;
        adapter.open().await;
        adapter.open().await;
        adapter.mark.until_leaders::<2>().await;
        let (guard, mark) = (adapter.guard(), adapter.mark);
        adapter.proxy.kill().await;
        until(which, async || mark.processes().is_empty() && !is_running(guard)).await;
    }
}

#[tokio::test]
async fn no_child_outlives_a_proxy_that_is_stopped() {
    for (which, script) in servers() {
        let adapter = Adapter::start(&script, &[]).await;
        adapter.open().await;
        adapter.open().await;
        let (guard, mark) = (adapter.guard(), adapter.mark);
        adapter.proxy.stop().await;
        // A process that was killed has its environment until the system has ended it.
        until(which, async || mark.processes().is_empty()).await;
        until("the guard has ended", async || !is_running(guard)).await;
    }
}

#[tokio::test]
async fn no_child_outlives_a_proxy_that_a_second_signal_ends() {
    let (_, script) = servers().swap_remove(1);
    let adapter = Adapter::start(&script, &[]).await;
    adapter.open().await;
    let proxy = adapter.proxy.pid();
    adapter.proxy.signal("TERM").await;
    adapter.proxy.signal("TERM").await;
    until("the proxy has ended", async || !is_running(proxy)).await;
    adapter.all_gone().await;
}

#[tokio::test]
async fn the_end_of_the_first_process_is_that_of_its_group() {
    for (which, script) in servers() {
        let adapter = Adapter::start(&script, &[]).await;
        adapter.open().await;
        let [leader] = adapter.mark.until_leaders().await;
        kill(leader).await;
        until(which, async || adapter.mark.processes().is_empty()).await;
    }
}

#[tokio::test]
async fn the_end_of_a_session_is_that_of_its_processes() {
    for (which, script) in servers() {
        let adapter = Adapter::start(&script, &[]).await;
        let session = adapter.open().await;
        // The session of a server that has closed its output has ended already.
        let status = session.delete().send(adapter.proxy.addr).await.status;
        assert!(matches!(status, 200 | 404), "{which}: {status}");
        until(which, async || adapter.mark.processes().is_empty()).await;
    }
}

#[tokio::test]
async fn a_guard_that_is_killed_is_started_again_and_knows_all_children() {
    let (_, script) = servers().swap_remove(1);
    let adapter = Adapter::start(&script, &[]).await;
    adapter.open().await;
    let first = adapter.guard();
    kill(first).await;
    let proxy = adapter.proxy.pid();
    let is_new = async || children_of(proxy, "__guard").iter().any(|&guard| guard != first);
    until("another guard runs", is_new).await;
    // The guard knows a later child, and so all earlier ones.
    adapter.open().await;
    let mark = adapter.mark;
    mark.until_leaders::<2>().await;
    adapter.proxy.kill().await;
    until("the processes are gone", async || mark.processes().is_empty()).await;
}

#[tokio::test]
async fn without_proxy_and_guard_a_server_ends_with_its_input() {
    let (_, script) = servers().swap_remove(0);
    let adapter = Adapter::start(&script, &[]).await;
    adapter.open().await;
    let (guard, mark) = (adapter.guard(), adapter.mark);
    kill(guard).await;
    adapter.proxy.kill().await;
    until("the processes are gone", async || mark.processes().is_empty()).await;
}

#[tokio::test]
async fn a_server_that_reads_nothing_holds_up_only_its_session() {
    let bounds = [("STREAMS__MAX_EVENT_BYTES", "500000"), ("STREAMS__MAX_BYTES", "1000000")];
    let adapter = Adapter::start(&format!("{READY}; exec sleep 1000"), &bounds).await;
    let (stuck, other) = (adapter.open().await, adapter.open().await);
    let text = "x".repeat(300_000);
    let note = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": text}}).to_string();
    let mut statuses = Vec::new();
    for _ in 0..6 {
        statuses.push(stuck.post(&note).send(adapter.proxy.addr).await.status);
    }
    assert_eq!((statuses[0], statuses[5]), (202, 503), "{statuses:?}");
    assert_eq!(other.post(&note).send(adapter.proxy.addr).await.status, 202);
    for session in [stuck, other] {
        assert_eq!(session.delete().send(adapter.proxy.addr).await.status, 200);
    }
    adapter.all_gone().await;
}
