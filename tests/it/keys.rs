//! Signing keys that the operator gives.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use mcp_resume::config::{Config, DiskStore, Fsync, OnUnreachable, Store};
use mcp_resume::sidecar;
use serde_json::json;

use crate::dialects::open;
use crate::stores::disk::Dir;
use crate::support::*;

/// A file of keys that is there for one test; each key by a byte.
struct Keys(PathBuf);

impl Keys {
    fn new(name: &str, keys: &[u8]) -> Keys {
        let text: Vec<String> = keys.iter().map(|byte| format!("{byte:02x}").repeat(32)).collect();
        Keys::of_text(name, &format!("# ours\n{}\n", text.join("\n")))
    }

    fn of_text(name: &str, text: &str) -> Keys {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("keys-{name}"));
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        Keys(path)
    }

    fn give(&self, config: &mut Config) {
        config.replica.key_file = Some(self.0.clone());
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// A proxy in memory, and the server behind it.
async fn with(keys: Option<&Keys>) -> (Upstream, Proxy) {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |config| keys.into_iter().for_each(|keys| keys.give(config))).await;
    (upstream, proxy)
}

/// A session of the proxy's own, in which streams are announced.
async fn issue((upstream, proxy): &mut (Upstream, Proxy)) -> Session {
    open(proxy, upstream, json!({ "streams": {} }), None).await.0
}

async fn knows((upstream, proxy): &mut (Upstream, Proxy), session: &Session) -> bool {
    let (sse, mut response) = begin(proxy, upstream, &session.post(call(1))).await;
    sse.finish(result(1)).await;
    let (events, _) = response.events().await;
    events[0].json()["method"] == "notifications/stream/create"
}

#[tokio::test]
async fn an_issued_session_is_known_at_every_replica_that_has_its_key() {
    let (old, both, new) = (Keys::new("old", &[1]), Keys::new("both", &[2, 1]), Keys::new("new", &[2]));
    let mut first = with(Some(&old)).await;
    let by_old = issue(&mut first).await;
    let mut changing = with(Some(&both)).await;
    let by_new = issue(&mut changing).await;
    let mut last = with(Some(&new)).await;
    let mut other = with(None).await;
    for (proxy, knows_old, knows_new) in
        [(&mut first, true, false), (&mut changing, true, true), (&mut last, false, true), (&mut other, false, false)]
    {
        assert_eq!((knows(proxy, &by_old).await, knows(proxy, &by_new).await), (knows_old, knows_new));
    }
}

/// A call of a caller with credentials, over and kept: its session and its place.
async fn kept(proxy: &Proxy, upstream: &mut Upstream, id: &str) -> (Session, EventId) {
    let session = Session::open_as(proxy, upstream, V2025_11, id, Some("Bearer b")).await;
    let (sse, mut response) = begin(proxy, upstream, &session.post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    sse.finish(result(1)).await;
    response.events().await;
    (session, place)
}

async fn has(proxy: &Proxy, (session, place): &(Session, EventId)) -> bool {
    let mut back = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    back.event().await.bytes() == result(1).as_bytes()
}

/// Checks that stored streams can be resumed while the keys change at each start.
async fn outlive_their_keys(start: impl AsyncFn(Option<&Keys>) -> Proxy, upstream: &mut Upstream, name: &str) {
    let proxy = start(None).await;
    let by_stored = kept(&proxy, upstream, "s-1").await;
    proxy.stop().await;

    let old = Keys::new(&format!("{name}-old"), &[1]);
    let proxy = start(Some(&old)).await;
    assert!(has(&proxy, &by_stored).await, "what the store's own key signed");
    let by_old = kept(&proxy, upstream, "s-2").await;
    proxy.stop().await;

    let changed = Keys::new(&format!("{name}-changed"), &[2, 1]);
    let proxy = start(Some(&changed)).await;
    assert!(has(&proxy, &by_stored).await && has(&proxy, &by_old).await, "their callers are who they were");
    proxy.stop().await;

    let proxy = start(None).await;
    assert!(has(&proxy, &by_stored).await);
    assert!(!has(&proxy, &by_old).await, "the key that signed it is gone");
    proxy.stop().await;
}

#[tokio::test]
async fn on_disk_streams_outlive_a_change_of_keys() {
    let dir = Dir::new("keys");
    let mut upstream = Upstream::start().await;
    let url = upstream.url();
    let start = async |keys: Option<&Keys>| {
        let store = DiskStore { path: dir.0.clone(), fsync: Fsync::Interval, max_bytes: 1 << 30 };
        Proxy::to_url(&url, |config| {
            config.store = Store::Disk(store);
            keys.into_iter().for_each(|keys| keys.give(config));
        })
        .await
    };
    outlive_their_keys(start, &mut upstream, "disk").await;
}

#[tokio::test]
async fn in_redis_streams_outlive_a_change_of_keys() {
    let redis = Redis::start();
    let mut upstream = Upstream::start().await;
    let url = upstream.url();
    let start = async |keys: Option<&Keys>| {
        Proxy::to_url(&url, |config| {
            redis.of("one", OnUnreachable::Degrade)(config);
            keys.into_iter().for_each(|keys| keys.give(config));
        })
        .await
    };
    outlive_their_keys(start, &mut upstream, "redis").await;
}

async fn refused(keys: &Keys) -> String {
    let upstream = Upstream::start().await;
    match Proxy::try_to_url(&upstream.url(), |config| keys.give(config)).await {
        Err(error @ sidecar::Error::Keys(_)) => error.to_string(),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it started"),
    }
}

#[tokio::test]
async fn a_file_that_cannot_be_used_is_refused_and_named() {
    let good = "ab".repeat(32);
    let missing = Keys(PathBuf::from("/nowhere/keys"));
    assert!(refused(&missing).await.contains("/nowhere/keys cannot be read"));
    let empty = Keys::of_text("empty", "# none\n");
    assert!(refused(&empty).await.ends_with("cannot be used: there is none"));
    let short = Keys::of_text("short", &format!("{good}\n{}", &good[2..]));
    let told = refused(&short).await;
    assert!(told.contains("line 2 is no key") && !told.contains("abab"), "{told}");
    let open = Keys::of_text("open", &good);
    for mode in [0o604, 0o602, 0o644] {
        fs::set_permissions(&open.0, fs::Permissions::from_mode(mode)).unwrap();
        assert!(refused(&open).await.contains("open to"), "{mode:o}");
    }
    fs::set_permissions(&open.0, fs::Permissions::from_mode(0o440)).unwrap();
    with(Some(&open)).await;
}
