//! A Redis that dies and comes back, with what it held or without, while calls run.

use std::cell::Cell;
use std::time::{Duration, Instant};

use serde_json::json;

use super::*;
use crate::cancel::cancelled;
use crate::client_responses::{answer, question};
use crate::dialects::open;
use crate::misdirected::{TWO, misdirected};

const LEASE: Duration = Duration::from_secs(2);
const UNREACHABLE: &str = "store_failures_total{reason=\"unreachable\"}";

/// Two replicas in these manners, a call at the first one, and what its client has got.
struct Scene {
    redis: Redis,
    one: Replica,
    two: Replica,
    session: Session,
    sse: Sse,
    response: Response,
    place: EventId,
}

async fn scene(on_unreachable: OnUnreachable) -> Scene {
    scene_with(on_unreachable, LEASE).await
}

async fn scene_with(on_unreachable: OnUnreachable, lease: Duration) -> Scene {
    let redis = Redis::start();
    let manners = |config: &mut Config| {
        if let mcp_resume::config::Store::Redis(store) = &mut config.store {
            store.on_unreachable = on_unreachable;
        }
        config.streams.max_wait = Some(Duration::from_secs(5));
        config.replica.lease = lease;
    };
    let mut one = Replica::with(&redis, "one", manners).await;
    let mut two = Replica::with(&redis, "two", manners).await;
    let session = one.open(V2025_11).await;
    // So that both are ready.
    Session::open_as(&two.proxy, &mut two.upstream, V2025_11, "s-2", None).await;
    let (sse, mut response, place) = one.begin(&session.post(call(1))).await;
    sse.event(progress(1)).await;
    assert_eq!(response.event().await.bytes(), progress(1).as_bytes());
    Scene { redis, one, two, session, sse, response, place }
}

impl Scene {
    async fn end_redis(&mut self) {
        self.redis.kill();
        for replica in [&self.one, &self.two] {
            until("it is seen", async || replica.metric("store_ready").await == 0.0).await;
        }
    }

    async fn heals(&self) {
        for replica in [&self.one, &self.two] {
            until("it is seen", async || replica.metric("store_ready").await == 1.0).await;
            assert_eq!(replica.readiness().await, (200, "ready\n".to_owned()));
        }
    }

    async fn event(&mut self, n: u64) {
        self.sse.event(progress(n)).await;
        let event = self.response.event().await;
        assert_eq!((event.id(), event.bytes()), (self.place.at(n).as_str(), progress(n).as_bytes()));
    }

    /// A client that comes back to the other replica, as soon as that can be, has every event; and
    /// the rest.
    async fn goes_on_elsewhere(self, events: u64) {
        let Scene { one, two, session, sse, response, place, .. } = self;
        drop(response);
        let mut back = two.send(session.resume(&place.at(0))).await.sse();
        for n in 1..=events {
            let event = back.event().await;
            assert_eq!((event.id(), event.bytes()), (place.at(n).as_str(), progress(n).as_bytes()));
        }
        sse.finish(result(1)).await;
        assert_eq!(rest(&mut back).await, [result(1)]);
        for replica in [&one, &two] {
            assert_eq!(replica.metric("streams_adopted_total").await, 0.0);
            assert_eq!(replica.metric("streams_fenced_total").await, 0.0);
        }
    }
}

/// The store could not be asked: the client is to try again, and its call is not said to be gone.
pub(super) async fn try_again(proxy: &Proxy, request: Request) {
    let mut response = request.send(proxy.addr).await;
    assert_eq!((response.status, response.header("retry-after")), (503, Some("1")));
    let message = response.json().await;
    assert_eq!(message["error"]["message"], STORE_FAILED, "{message}");
    assert_eq!(message["error"]["data"]["mayHaveRun"], false, "{message}");
}

#[tokio::test]
async fn degrading_replicas_continue_from_memory_and_resync() {
    let mut scene = scene(OnUnreachable::Degrade).await;
    scene.end_redis().await;
    for n in 2..=3 {
        scene.event(n).await;
    }
    assert!(scene.one.metric(UNREACHABLE).await >= 1.0);
    let said = "ready, but the store cannot be reached: memory stands for it\n".to_owned();
    assert_eq!(scene.one.readiness().await, (200, said));
    try_again(&scene.two.proxy, scene.session.resume(&scene.place.at(1))).await;
    try_again(&scene.two.proxy, scene.session.get().target(&url_of(&scene.place))).await;
    // A balancer is told that it is to ask the owner.
    let resume = scene.session.resume(&scene.place.at(1));
    let again = scene.session.post(call(1)).resume_from(&scene.place.at(1));
    for request in [resume, scene.session.get().target(&url_of(&scene.place)), again] {
        misdirected(&scene.two.proxy, request, TWO).await;
    }
    // At its owner everything is as ever.
    let mut back = scene.one.send(scene.session.resume(&scene.place.at(2))).await.sse();
    assert_eq!(back.event().await.bytes(), progress(3).as_bytes());
    scene.response = back;
    let (sse, mut response, begun) = scene.one.begin(&scene.session.post(call(2))).await;
    sse.event(progress(1)).await;
    response.event().await;
    scene.redis.begin_again();
    scene.heals().await;
    // Begun without the store, and there now.
    sse.finish(result(2)).await;
    assert_eq!(rest(&mut response).await, [result(2)]);
    let mut other = scene.two.send(scene.session.resume(&begun.at(0))).await.sse();
    assert_eq!(rest(&mut other).await, [progress(1), result(2)]);
    scene.goes_on_elsewhere(3).await;
}

#[tokio::test]
async fn a_stream_that_ended_during_an_outage_is_read_at_another_replica_after_it() {
    let mut scene = scene(OnUnreachable::Degrade).await;
    scene.end_redis().await;
    let Scene { mut redis, two, session, sse, mut response, place, one } = scene;
    sse.finish(result(1)).await;
    assert_eq!(rest(&mut response).await, [result(1)]);
    redis.begin_again();
    until("the other one can tell", async || two.send(session.resume(&place.at(0))).await.status == 200).await;
    until("the end is brought there", async || {
        let mut back = two.send(session.get().target(&url_of(&place))).await.sse();
        back.prime().await;
        let (first, second) = (back.event().await, back.event().await);
        assert_eq!(texts(&[first, second]), [progress(1), result(1)]);
        back.frame().await.is_none()
    })
    .await;
    assert_eq!(one.metric("streams_fenced_total").await, 0.0);
}

#[tokio::test]
async fn an_outage_longer_than_the_lease_declares_no_replica_dead() {
    let mut scene = scene(OnUnreachable::Degrade).await;
    scene.end_redis().await;
    scene.event(2).await;
    // An abandoned call tells that more than two leases are over.
    let (left, response, _) = scene.one.begin(&scene.session.post(call(2))).await;
    response.reset();
    left.closed().await;
    scene.one.upstream.expect("notifications/cancelled").await.status(202).await;
    scene.redis.begin_again();
    scene.heals().await;
    // The same time again, for a replica that might be swept.
    let (left, response, _) = scene.one.begin(&scene.session.post(call(3))).await;
    response.reset();
    left.closed().await;
    scene.event(3).await;
    scene.goes_on_elsewhere(3).await;
}

#[tokio::test]
async fn running_streams_are_written_again_to_an_empty_redis() {
    for on_unreachable in [OnUnreachable::Degrade, OnUnreachable::Refuse] {
        let mut scene = scene(on_unreachable).await;
        let (sse, mut response, over) = scene.one.begin(&scene.session.post(call(2))).await;
        sse.finish(result(2)).await;
        assert_eq!(rest(&mut response).await, [result(2)]);
        scene.end_redis().await;
        scene.redis.begin_empty();
        // What was over follows behind. Until then it is said to be tried again, and never that it
        // is gone.
        until("it is brought there", async || {
            let mut back = scene.two.send(scene.session.resume(&over.at(0))).await;
            if back.status == 503 {
                return false;
            }
            assert_eq!((back.status, rest(&mut back).await), (200, vec![result(2)]));
            true
        })
        .await;
        scene.heals().await;
        scene.event(2).await;
        scene.goes_on_elsewhere(2).await;
    }
}

/// If Redis loses a running call that a replica had read from it, nothing proves that the call is
/// over.
#[tokio::test]
async fn a_reader_at_another_replica_continues_after_redis_lost_its_data() {
    for is_attached in [true, false] {
        let mut scene = scene(OnUnreachable::Degrade).await;
        let mut back = scene.two.send(scene.session.resume(&scene.place.at(0))).await.sse();
        assert_eq!(back.event().await.bytes(), progress(1).as_bytes());
        if !is_attached {
            back.reset();
            scene.one.knows_of_readers(0).await;
        }
        scene.redis.kill();
        scene.redis.begin_empty();
        let (session, place, two) = (&scene.session, scene.place.at(1), &scene.two);
        let sse = Cell::new(Some(scene.sse));
        until("it goes on there", async || {
            let mut back = two.send(session.resume(&place)).await;
            assert!(matches!(back.status, 200 | 503), "{}", back.status);
            if back.status == 503 {
                return false;
            }
            if let Some(sse) = sse.take() {
                sse.finish(result(1)).await;
            }
            rest(&mut back).await == [result(1)]
        })
        .await;
    }
}

#[tokio::test]
async fn sessions_are_back_in_an_empty_redis_as_well() {
    Box::pin(sessions_are_back(Redis::begin_empty)).await;
}

#[tokio::test]
async fn sessions_are_back_in_a_redis_that_is_as_it_was_before_them() {
    Box::pin(sessions_are_back(Redis::begin_as_remembered)).await;
}

async fn sessions_are_back(begin: fn(&mut Redis)) {
    let mut scene = scene(OnUnreachable::Degrade).await;
    scene.redis.remember();
    scene.session = Session::open_as(&scene.one.proxy, &mut scene.one.upstream, V2025_11, "s-3", None).await;
    let (own, _) = open(&scene.one.proxy, &mut scene.one.upstream, json!({ "streams": {} }), None).await;
    let mut open = Vec::new();
    for (n, session) in [(2, &scene.session), (3, &own)] {
        let (sse, mut response, _) = scene.one.begin(&session.post(call(n))).await;
        sse.event(question("q")).await;
        while response.event().await.bytes() != question("q").as_bytes() {}
        open.push((session.clone(), sse, response));
    }
    let (sse, mut response, over) = scene.one.begin(&scene.session.post(call(4))).await;
    sse.finish(result(4)).await;
    assert_eq!(rest(&mut response).await, [result(4)]);
    scene.end_redis().await;
    begin(&mut scene.redis);
    // As the last thing.
    until("all is brought there", async || scene.two.send(scene.session.resume(&over.at(0))).await.status == 200).await;
    for (session, _sse, _response) in open {
        let pending = session.post(answer("q")).start(scene.two.proxy.addr).await;
        scene.one.upstream.expect("response").await.status(202).await;
        assert_eq!(pending.response().await.status, 202);
    }
    assert!(scene.two.upstream.is_quiet());
}

/// As after a failover to a replica that lagged, or from a snapshot.
#[tokio::test]
async fn streams_that_ended_during_an_outage_are_written_to_redis_after_it() {
    let mut scene = scene(OnUnreachable::Degrade).await;
    let (begun, mut response, half) = scene.one.begin(&scene.session.post(call(2))).await;
    begun.event(progress(1)).await;
    assert_eq!(response.event().await.bytes(), progress(1).as_bytes());
    scene.redis.remember();
    begun.finish(result(2)).await;
    assert_eq!(rest(&mut response).await, [result(2)]);
    let (sse, mut response, whole) = scene.one.begin(&scene.session.post(call(3))).await;
    sse.finish(result(3)).await;
    assert_eq!(rest(&mut response).await, [result(3)]);
    scene.event(2).await;
    scene.end_redis().await;
    scene.redis.begin_as_remembered();
    scene.heals().await;
    for (place, result) in [(half.at(1), result(2)), (whole.at(0), result(3))] {
        until("it is brought there", async || {
            let mut back = scene.two.send(scene.session.resume(&place)).await;
            back.status == 200 && rest(&mut back).await == [result.as_str()]
        })
        .await;
    }
    // No replica has written to this one since.
    let mut back = scene.two.send(scene.session.resume(&scene.place.at(1))).await.sse();
    assert_eq!(back.event().await.bytes(), progress(2).as_bytes());
    scene.sse.event(progress(3)).await;
    assert_eq!(back.event().await.bytes(), progress(3).as_bytes());
}

/// There every replica's lease has lapsed.
#[tokio::test]
async fn no_replica_is_declared_dead_by_a_redis_that_comes_back_unchanged() {
    // The lease is renewed so seldom that no replica needs to notice that Redis was away.
    let lease = 2 * LEASE;
    let mut scene = scene_with(OnUnreachable::Degrade, lease).await;
    scene.redis.remember();
    let remembered = Instant::now();
    until("what is remembered has lapsed", async || remembered.elapsed() > lease + LEASE / 4).await;
    scene.redis.kill();
    scene.redis.begin_as_remembered();
    scene.event(2).await;
    until("it is had there", async || {
        let mut back = scene.two.send(scene.session.resume(&scene.place.at(1))).await;
        back.status == 200 && back.event().await.bytes() == progress(2).as_bytes()
    })
    .await;
    let mut back = scene.two.send(scene.session.resume(&scene.place.at(1))).await.sse();
    scene.sse.finish(result(1)).await;
    assert_eq!(rest(&mut back).await, [progress(2), result(1)]);
    assert_eq!(scene.one.metric("streams_fenced_total").await, 0.0);
}

#[tokio::test]
async fn a_silent_call_is_back_in_an_empty_redis_as_well() {
    let mut scene = scene(OnUnreachable::Degrade).await;
    scene.redis.kill();
    scene.redis.begin_empty();
    // Nothing is written meanwhile.
    let Scene { two, session, place, sse, .. } = scene;
    until("it is brought there", async || {
        let (session, place) = (&session, &place);
        let mut back = two.send(session.resume(&place.at(0))).await;
        back.status == 200 && back.event().await.bytes() == progress(1).as_bytes()
    })
    .await;
    let mut back = two.send(session.resume(&place.at(1))).await.sse();
    sse.finish(result(1)).await;
    assert_eq!(rest(&mut back).await, [result(1)]);
}

/// The server behind another replica would take an answer that it has not asked for, and that would
/// be the end of it.
#[tokio::test]
async fn a_client_response_that_cannot_be_forwarded_is_sent_again() {
    let mut scene = scene(OnUnreachable::Degrade).await;
    let (session, _) = open(&scene.one.proxy, &mut scene.one.upstream, json!({ "streams": {} }), None).await;
    let (sse, mut response, place) = scene.one.begin(&session.post(call(2))).await;
    sse.event(question("q")).await;
    while response.event().await.bytes() != question("q").as_bytes() {}
    scene.end_redis().await;
    for target in ["/mcp", &url_of(&place)] {
        try_again(&scene.two.proxy, session.post(answer("q")).target(target)).await;
    }
    try_again(&scene.two.proxy, session.delete()).await;
    assert!(scene.one.upstream.is_quiet() && scene.two.upstream.is_quiet());
    scene.redis.begin_again();
    scene.heals().await;
    let pending = session.post(answer("q")).start(scene.two.proxy.addr).await;
    scene.one.upstream.expect("response").await.status(202).await;
    assert_eq!(pending.response().await.status, 202);
    sse.finish(result(2)).await;
    assert_eq!(response.event().await.bytes(), result(2).as_bytes());
    assert!(scene.two.upstream.is_quiet());
}

/// The server behind another replica may have the session; if not, its owner cannot be told.
#[tokio::test]
async fn a_request_of_an_unknown_session_is_refused_for_a_retry_during_an_outage() {
    let mut scene = scene(OnUnreachable::Degrade).await;
    scene.end_redis().await;
    let requests = [
        (scene.session.post(answer("q")), "response"),
        (scene.session.post(cancelled(1)), "notifications/cancelled"),
        (scene.session.delete(), "DELETE"),
    ];
    for (request, rpc) in &requests {
        let given = async { scene.two.upstream.expect(rpc).await.status(404).await };
        tokio::join!(try_again(&scene.two.proxy, request.clone()), given);
    }
    let pending = scene.session.post(answer("q")).start(scene.two.proxy.addr).await;
    scene.two.upstream.expect("response").await.status(202).await;
    assert_eq!(pending.response().await.status, 202);
    scene.redis.begin_again();
    scene.heals().await;
    for (request, rpc) in requests {
        let pending = request.start(scene.two.proxy.addr).await;
        scene.one.upstream.expect(rpc).await.status(202).await;
        assert_eq!(pending.response().await.status, 202, "{rpc}");
    }
    assert!(scene.two.upstream.is_quiet());
}

/// The session's owner is unknown until its replica has registered again.
#[tokio::test]
async fn a_forwarded_request_reaches_the_sessions_server_although_redis_lost_its_data() {
    let mut scene = scene(OnUnreachable::Degrade).await;
    for (request, rpc) in [(scene.session.post(answer("q")), "response"), (scene.session.delete(), "DELETE")] {
        scene.redis.empty();
        let comes_again = async {
            loop {
                match scene.two.told(request.clone()).await.0 {
                    503 => tokio::task::yield_now().await,
                    status => return status,
                }
            }
        };
        let given = async {
            let call = scene.one.upstream.expect(rpc).await;
            assert_eq!(call.header("mcp-session-id"), Some(scene.session.id.as_str()));
            call.status(202).await;
        };
        assert_eq!(tokio::join!(comes_again, given).0, 202, "{rpc}");
        assert!(scene.two.upstream.is_quiet());
    }
}

#[tokio::test]
async fn refusing_replicas_wait_and_give_nothing_that_the_store_has_not() {
    let mut scene = scene(OnUnreachable::Refuse).await;
    scene.end_redis().await;
    scene.sse.event(progress(2)).await;
    until("it is tried", async || scene.one.metric(UNREACHABLE).await >= 1.0).await;
    assert_eq!(scene.one.readiness().await, (503, "the store cannot be reached\n".to_owned()));
    for replica in [&scene.one, &scene.two] {
        let mut refused = replica.send(scene.session.post(call(9))).await;
        assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
        let message = refused.json().await;
        assert_fault(&message, 9, BOUND, "proxy");
        assert_eq!(message["error"]["message"], STORE_FAILED);
        try_again(&replica.proxy, scene.session.resume(&scene.place.at(1))).await;
    }
    assert!(scene.one.upstream.is_quiet() && scene.two.upstream.is_quiet());
    scene.redis.begin_again();
    scene.heals().await;
    assert_eq!(scene.response.event().await.bytes(), progress(2).as_bytes());
    scene.event(3).await;
    scene.goes_on_elsewhere(3).await;
}

#[tokio::test]
async fn an_outage_longer_than_the_lease_makes_refusing_replicas_wait_longer() {
    let mut scene = scene(OnUnreachable::Refuse).await;
    let began = Instant::now();
    scene.end_redis().await;
    scene.sse.event(progress(2)).await;
    // Everything waits, so that nothing but time tells.
    until("more than two leases are over", async || began.elapsed() > Duration::from_secs(5)).await;
    scene.redis.begin_again();
    scene.heals().await;
    assert_eq!(scene.response.event().await.bytes(), progress(2).as_bytes());
    scene.goes_on_elsewhere(2).await;
}

#[tokio::test]
async fn a_start_while_redis_is_away_waits_for_it_and_is_not_ready() {
    let mut redis = Redis::start();
    redis.kill();
    let upstream = Upstream::start().await;
    let mut config = Config::for_upstream(&upstream.url()).expect("a usable URL");
    redis.of("one", OnUnreachable::Degrade)(&mut config);
    let (told, waits) = tokio::sync::oneshot::channel();
    let starting = tokio::spawn(mcp_resume::sidecar::Server::bind_and_wait(config, |at| {
        let _ = told.send(at);
    }));
    let at = within("it waits", waits).await.expect("addresses");
    let admin = at.admin.expect("an admin listener");
    assert_eq!(Request::new("GET", "/livez").send(admin).await.status, 200);
    assert_eq!(Request::new("GET", "/readyz").send(admin).await.status, 503);
    let mut page = Request::new("GET", "/metrics").send(admin).await;
    assert!(String::from_utf8(page.body().await).expect("text").contains("\nmcp_resume_ready 0\n"));
    let mut refused = Request::post(call(1)).send(at.data).await;
    assert_eq!(refused.status, 503);
    assert_eq!(refused.json().await["error"]["data"]["mayHaveRun"], false);
    assert_eq!(upstream.connections(), 0);

    redis.begin_again();
    let server = within("it has started", starting).await.expect("no panic").expect("a server");
    assert_eq!(server.addresses(), at, "the same listeners");
    let running = tokio::spawn(server.run(std::future::pending()));
    assert_eq!(Request::new("GET", "/readyz").send(admin).await.status, 200);
    running.abort();
}

#[tokio::test]
async fn a_permanent_store_error_ends_a_start() {
    let redis = Redis::start();
    let upstream = Upstream::start().await;
    let mut config = Config::for_upstream(&upstream.url()).expect("a usable URL");
    redis.of("one", OnUnreachable::Degrade)(&mut config);
    let mcp_resume::config::Store::Redis(store) = &mut config.store else { panic!("it is Redis") };
    store.url = "redis:".to_owned();
    let started = mcp_resume::sidecar::Server::bind_and_wait(config, |_| panic!("it waits")).await;
    assert!(started.is_err_and(|error| error.to_string().contains("URL")));
}

/// Commands that Redis received before it went silent take effect when it goes on.
#[tokio::test]
async fn a_call_that_was_refused_without_the_store_runs_once_it_is_back() {
    // Long enough that no replica is declared dead meanwhile, or short enough that every lease
    // expires.
    for (comes_back_elsewhere, lease) in [(false, 10 * LEASE), (true, 10 * LEASE), (false, LEASE), (true, LEASE)] {
        let mut scene = scene_with(OnUnreachable::Refuse, lease).await;
        let process = scene.redis.process_id();
        let began = Instant::now();
        scene.redis.signal("-STOP", &process);
        let request = scene.session.post(call(9)).with("Idempotency-Key", "k");
        try_again(&scene.one.proxy, request.clone()).await;
        if lease == LEASE {
            until("more than two leases are over", async || began.elapsed() > 5 * LEASE / 2).await;
        }
        scene.redis.signal("-CONT", &process);
        let again = if comes_back_elsewhere { &mut scene.two } else { &mut scene.one };
        let resume = scene.session.resume(&scene.place.at(1));
        until("it has the store again", async || again.send(resume.clone()).await.status == 200).await;
        let pending = request.start(again.proxy.addr).await;
        again.upstream.expect("tools/call").await.json(200, result(9)).await;
        assert_eq!(pending.response().await.body().await, result(9).as_bytes());
    }
}
