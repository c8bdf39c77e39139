//! Takeover of a stream by a newer connection.

use super::*;

#[tokio::test]
async fn a_newer_connection_takes_over_and_the_older_ends_gracefully() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut older) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    sse.event(progress(1)).await;
    let place = EventId::of(older.event().await.id());
    let mut newer = session.resume(&place.at(1)).send(proxy.addr).await.sse();
    newer.prime().await;
    older.ends().await;
    sse.finish(result(1)).await;
    assert_eq!(newer.event().await.bytes(), result(1).as_bytes());
    newer.ends().await;
}

#[tokio::test]
async fn retry_doubles_with_each_takeover() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut older) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let place = EventId::of(older.prime().await.id());
    let mut told = Vec::new();
    for _ in 0..4 {
        let mut newer = session.resume(&place.at(0)).send(proxy.addr).await.sse();
        newer.prime().await;
        let last_words = older.frames().await;
        told.push(last_words.iter().filter_map(|f| f.retry).next_back());
        older = newer;
    }
    assert_eq!(told, [Some(2000), Some(4000), Some(8000), Some(16000)]);
    sse.finish(result(1)).await;
}

#[tokio::test]
async fn takeovers_in_mid_stream_lose_and_repeat_nothing() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut reader) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let place = EventId::of(reader.prime().await.id());
    let mut seen = Vec::new();
    for n in 1..=50 {
        // The event and the takeover race; exactly one connection gets it, once.
        sse.event(progress(n)).await;
        let from = reader.last_id().unwrap().to_owned();
        let mut newer = session.resume(&from).send(proxy.addr).await.sse();
        let (late, end) = reader.events().await;
        assert_eq!(end, End::Complete);
        newer.prime().await;
        if late.is_empty() {
            seen.push(newer.event().await);
        } else {
            // Written to the older one and never confirmed: the newer one asked from before it.
            let again = newer.event().await;
            assert_eq!(late, std::slice::from_ref(&again));
            seen.push(again);
        }
        reader = newer;
    }
    let ids: Vec<String> = seen.iter().map(|f| f.id().to_owned()).collect();
    let all: Vec<String> = (1..=50).map(|n| place.at(n)).collect();
    assert_eq!(ids, all);
    sse.finish(result(1)).await;
}

#[tokio::test]
async fn a_hopeless_resume_does_not_disturb_the_reader() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut reader) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let place = EventId::of(reader.prime().await.id());
    gone(session.resume(&place.at(5)), &proxy).await;
    gone(session.resume(&place.at(0)).with("Authorization", "Bearer x"), &proxy).await;
    sse.finish(result(1)).await;
    assert_eq!(reader.event().await.bytes(), result(1).as_bytes());
    reader.ends().await;
}

#[tokio::test]
async fn a_resume_that_takes_no_stream_is_406_and_disturbs_no_reader() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    let request = session.resume(&place.at(0)).with("Accept", "application/json");
    assert_eq!(request.send(proxy.addr).await.status, 406);
    sse.finish(result(1)).await;
    assert_eq!(response.event().await.bytes(), result(1).as_bytes());
    response.ends().await;
}
