//! Clients that come back, and those who only say so.

use super::*;
use std::time::Duration;

#[tokio::test]
async fn hostile_cursors_at_full_speed_all_get_the_same_and_disturb_no_other_client() {
    let (mut upstream, proxy, session) = bounded(|_| ()).await;
    let mut neighbour = Neighbour::moves_in(&proxy, &mut upstream).await;
    let (_sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let mine = EventId::of(response.prime().await.id());
    let foreign = &neighbour.place.clone();
    let forged = [mine.forged().at(0), mine.at(1_000_000), foreign.at(0), foreign.forged().at(3), mine.forged().at(9)];
    let bytes: Vec<Vec<u8>> = forged.iter().map(|id| session.resume(id).bytes(proxy.addr)).collect();
    let attack = async {
        let attackers = (0..20).map(|n: usize| {
            let bytes = bytes[n % bytes.len()].clone();
            let addr = proxy.addr;
            tokio::spawn(async move {
                let mut client = Client::connect(addr).await;
                for _ in 0..100 {
                    client.send(&bytes).await;
                    let mut response = client.response().await.sse();
                    assert_fault(&response.event().await.json(), 1, GONE, "client");
                    response.ends().await;
                    client = response.into_client();
                }
            })
        });
        for attacker in attackers.collect::<Vec<_>>() {
            attacker.await.expect("an attacker gets its answers");
        }
    };
    let is_over = std::cell::Cell::new(false);
    let attack = async {
        attack.await;
        is_over.set(true);
    };
    let watch = async {
        while !is_over.get() {
            neighbour.hears().await;
        }
    };
    tokio::join!(attack, watch);
    let lost = "mcp_resume_resumes_total{dialect=\"last_event_id\",outcome=\"lost\"}";
    assert_eq!(metric(&proxy, lost).await, 2000.0);
    neighbour.moves_out().await;
}

const DELAYED: &str = "mcp_resume_resumes_delayed_total";

/// Resumes a stream of a caller that may resume once a second, until resumes wait for half a
/// minute. Returns their clients.
pub(super) async fn use_up_the_rate(proxy: &Proxy, session: &Session, place: &EventId) -> Vec<Client> {
    // Ten seconds' worth, and the one that begins them, are served.
    let mut resumes = Vec::new();
    for _ in 0..41 {
        resumes.push(session.resume(&place.at(0)).start(proxy.addr).await);
    }
    until("they wait", async || metric(proxy, DELAYED).await >= 15.0).await;
    resumes
}

#[tokio::test]
async fn resumes_beyond_the_rate_wait_and_are_served() {
    let (mut upstream, proxy, session) = bounded(|c| c.limits.resumes_per_sec = 1).await;
    let mut neighbour = Neighbour::moves_in(&proxy, &mut upstream).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    let others = use_up_the_rate(&proxy, &session, &place).await;
    let waiting = session.resume(&place.at(0)).start(proxy.addr).await;
    let mut waiting = std::pin::pin!(waiting.response());
    tokio::select! {
        biased;
        _ = &mut waiting => panic!("it was served at once"),
        () = settle(&proxy, &mut upstream) => {}
    }
    // The other caller has a row of its own.
    let theirs = neighbour.place.at(neighbour.events);
    let mut back = neighbour.session.resume(&theirs).send(proxy.addr).await.sse();
    back.prime().await;
    neighbour.response = back;
    neighbour.hears().await;
    // A caller that leaves has no turn.
    drop(others);
    settle(&proxy, &mut upstream).await;
    pass(Duration::from_secs(2)).await;
    let mut response = waiting.await.sse();
    response.prime().await;
    sse.finish(result(1)).await;
    assert_eq!(response.event().await.bytes(), result(1).as_bytes());
    response.ends().await;
    neighbour.moves_out().await;
}

#[tokio::test]
async fn resumes_that_hang_up_cost_the_others_of_their_caller_no_time() {
    let (mut upstream, proxy, session) = bounded(|c| c.limits.resumes_per_sec = 1).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    let junk = session.resume(&place.forged().at(0));
    for _ in 0..11 {
        junk.send(proxy.addr).await.body().await;
    }
    let open = metric(&proxy, "mcp_resume_connections").await;
    let bytes = junk.bytes(proxy.addr);
    for _ in 0..60 {
        let mut client = Client::connect(proxy.addr).await;
        client.send(&bytes).await;
        settle(&proxy, &mut upstream).await;
        client.reset();
    }
    while metric(&proxy, "mcp_resume_connections").await > open {
        settle(&proxy, &mut upstream).await;
    }
    let waiting = session.resume(&place.at(0)).start(proxy.addr).await;
    settle(&proxy, &mut upstream).await;
    pass(Duration::from_secs(2)).await;
    let mut response = waiting.response().await.sse();
    response.prime().await;
    sse.finish(result(1)).await;
    assert_eq!(response.event().await.bytes(), result(1).as_bytes());
}
