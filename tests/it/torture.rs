//! Many clients cut at seeded places again and again, on several threads.
//!
//! The one file whose proxy runs beside the test: what is checked holds in every interleaving.

use crate::support::*;

/// Numbers that look random and are the same in every run.
struct Noise(u64);

impl Noise {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

const EVENTS: u64 = 60;

/// Answers every call with progress and its result, at a pace of its own.
async fn serve(mut upstream: Upstream) {
    while let Some(call) = upstream.try_next().await {
        tokio::spawn(async move {
            let id = call.json_body()["id"].clone();
            let mut noise = Noise(id.as_u64().unwrap_or(1));
            let sse = call.sse().await;
            for n in 1..=EVENTS {
                sse.event(progress(n)).await;
                for _ in 0..noise.below(4) {
                    tokio::task::yield_now().await;
                }
            }
            sse.finish(result(id)).await;
        });
    }
}

/// Reads a call to its end through as many cuts as it takes; the payloads and how often it was cut.
async fn read_through_cuts(addr: std::net::SocketAddr, session: &Session, id: u64) -> (Vec<Vec<u8>>, u32) {
    let mut noise = Noise(id);
    let mut payloads = Vec::new();
    let mut cuts = 0;
    let mut last: Option<String> = None;
    loop {
        let request = match &last {
            None => session.post(call(id)),
            Some(last) => session.resume(last),
        };
        // Without an id there is no way back: the head and the first id are always read.
        let limit = 700 + noise.below(1500) as usize;
        let client = request.start(addr).await.stop_after(limit);
        let mut response = client.response().await;
        if response.status == 204 {
            return (payloads, cuts);
        }
        response = response.sse();
        while let Some(frame) = response.frame().await {
            if frame.is_event() {
                payloads.push(frame.bytes().to_vec());
            }
        }
        last = Some(response.last_id().expect("an id within the limit").to_owned());
        if response.end() == Some(End::Complete) {
            return (payloads, cuts);
        }
        cuts += 1;
        match noise.below(2) {
            0 => response.reset(),
            _ => response.fin(),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn cuts_anywhere_on_many_streams_lose_and_repeat_nothing() {
    let (upstream, proxy, session) = setup().await;
    let addr = proxy.addr;
    tokio::spawn(serve(upstream));
    let clients: Vec<_> = (1..=60)
        .map(|id| {
            let session = session.clone();
            tokio::spawn(async move { (id, read_through_cuts(addr, &session, id).await) })
        })
        .collect();
    let mut cuts = 0;
    for client in clients {
        let (id, (payloads, its_cuts)) = client.await.expect("a client ends well");
        let mut expected: Vec<Vec<u8>> = (1..=EVENTS).map(|n| progress(n).into_bytes()).collect();
        expected.push(result(id).into_bytes());
        assert!(payloads == expected, "call {id}: {} of {} events", payloads.len(), expected.len());
        cuts += its_cuts;
    }
    assert!(cuts > 100, "only {cuts} cuts");
}
