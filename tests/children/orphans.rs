//! Processes that leave their group, and lose their parents: the proxy collects them when they end.

use super::*;
use crate::table::{children_of, zombies_of};

/// Leaves a process behind, in a group of its own, whose parent has ended.
const LEAVES: &str = "(setsid sh -c 'sleep 1; :' left-behind </dev/null >/dev/null 2>&1 &)";

async fn orphans_are_collected(before: &[&str]) {
    let adapter = Adapter::start_by(before, &format!("{LEAVES}; {READY}; exec sed d"), &[]).await;
    adapter.open().await;
    let proxy = match before {
        [] => adapter.proxy.pid(),
        _ => children_of(adapter.proxy.pid(), "serve")[0],
    };
    until("the proxy has the orphan", async || !children_of(proxy, "left-behind").is_empty()).await;
    let has_none = async || children_of(proxy, "left-behind").is_empty() && zombies_of(proxy).is_empty();
    until("the orphan has ended and is collected", has_none).await;
    // The server goes on.
    adapter.mark.until_leaders::<1>().await;
}

#[tokio::test]
async fn a_proxy_collects_what_its_children_leave_behind() {
    orphans_are_collected(&[]).await;
}

#[tokio::test]
async fn a_proxy_that_is_process_one_collects_what_its_children_leave_behind() {
    // A namespace of processes, as a container has one. It ends with its first process.
    let namespace = ["unshare", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"];
    orphans_are_collected(&namespace).await;
}
