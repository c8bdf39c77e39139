//! One process on a directory, and the one after it.

use std::path::{Path, PathBuf};
use std::process::Output;

use mcp_resume::config::{DiskStore, Fsync, Store};
use serde_json::{Value, json};

use super::*;
use crate::beats::beat;
use crate::dialects::{ask, open, refused};
use crate::process::owner;
use crate::retry::runs_anew;

/// A directory that is there for one test.
pub(crate) struct Dir(pub(crate) PathBuf);

impl Dir {
    pub(crate) fn new(name: &str) -> Dir {
        let dir = Dir(Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("disk-{name}")));
        let _ = std::fs::remove_dir_all(&dir.0);
        dir
    }

    pub(crate) fn store(&self) -> String {
        format!("disk:{}", self.0.display())
    }

    pub(crate) async fn open(&self, upstream: &Upstream) -> Proxy {
        self.open_with(upstream, &[]).await
    }

    async fn open_with(&self, upstream: &Upstream, variables: &[(&str, &str)]) -> Proxy {
        let mut command = command(upstream);
        command.envs(variables.iter().copied());
        command.args(["--store", &self.store()]).env("MCP_RESUME_REPLICA__DRAIN_TIMEOUT_SECS", "0");
        Proxy::process(command).await
    }

    /// A process that is not to serve anything.
    async fn refused(&self) -> Output {
        let upstream = Upstream::start().await;
        let mut command = command(&upstream);
        command.args(["--store", &self.store()]).kill_on_drop(true);
        within("it gives up", command.output()).await.expect("the binary runs")
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A stream as its client knows it: everything that names it.
struct Known {
    id: u64,
    place: EventId,
    token: Value,
    stream: Value,
}

impl Known {
    /// Begins a call whose client declared everything, and reads one event of it.
    async fn begin(proxy: &Proxy, upstream: &mut Upstream, session: &Session, id: u64) -> (Known, Sse, Response) {
        let (sse, mut response) = begin(proxy, upstream, &session.post(call(id))).await;
        let place = EventId::of(response.prime().await.id());
        let token = response.event().await.json()["params"]["resumeToken"].clone();
        let stream = response.event().await.json()["params"]["streamId"].clone();
        sse.event(progress(id)).await;
        assert_eq!(response.event().await.id(), place.at(3));
        (Known { id, place, token, stream }, sse, response)
    }

    /// Every way back to what follows the announcements.
    fn ways(&self, session: &Session) -> [Request; 4] {
        let requested = json!({ "resumeToken": self.token });
        let named = json!({ "streamId": self.stream, "resumeToken": self.token });
        [
            session.get(),
            session.get().target(&url_of(&self.place)),
            session.post(ask(json!(self.id), "requests/resume", requested)),
            session.post(ask(json!("r"), "stream/resume", named)),
        ]
        .map(|request| request.resume_from(&self.place.at(2)))
    }

    fn status(&self, session: &Session) -> Request {
        session.post(ask(json!("s"), "requests/getStatus", json!({ "requestId": self.id, "resumeToken": self.token })))
    }

    fn poll(&self, session: &Session) -> Request {
        session.post(ask(json!("p"), "stream/poll", json!({ "streamId": self.stream, "resumeToken": self.token })))
    }
}

/// Checks the responses of the next process for a call that had ended, and for one that ran.
async fn after_restart(name: &str, kills: bool) {
    let dir = Dir::new(name);
    let mut upstream = Upstream::start().await;
    let proxy = dir.open(&upstream).await;
    let declared = json!({ "streams": {}, "resumableRequests": {} });
    let (session, _) = open(&proxy, &mut upstream, declared, Some("s")).await;
    let (ended, sse, mut response) = Known::begin(&proxy, &mut upstream, &session, 1).await;
    sse.finish(result(1)).await;
    response.events().await;
    let (ran, sse, response) = Known::begin(&proxy, &mut upstream, &session, 2).await;
    if kills {
        proxy.kill().await;
    } else {
        proxy.stop().await;
    }
    sse.closed().await;
    drop(response);

    let proxy = dir.open(&upstream).await;
    for request in ended.ways(&session) {
        let texts = rest(&mut request.send(proxy.addr).await.sse()).await;
        assert_eq!(texts[..2], [progress(1), result(1)]);
    }
    for request in ran.ways(&session) {
        let texts = rest(&mut request.send(proxy.addr).await.sse()).await;
        assert_eq!(texts[0], progress(2));
        let message: Value = serde_json::from_str(&texts[1]).expect("JSON");
        assert_fault(&message, 2, ABANDONED, "proxy");
        let told = if kills { OWNER_DIED } else { "the proxy is shutting down" };
        assert_eq!(message["error"]["message"], after_a_run(told));
        assert_eq!(message["error"]["data"]["mayHaveRun"], true);
    }
    let said = async |request: Request| request.send(proxy.addr).await.json().await["result"]["status"].clone();
    assert_eq!(said(ended.status(&session)).await, "completed");
    assert_eq!(said(ended.poll(&session)).await, "completed");
    assert_eq!(said(ran.status(&session)).await, "failed");
    assert_eq!(said(ran.poll(&session)).await, "completed");

    // A caller without access has none after the restart either.
    let strange = |request: Request| request.with("Authorization", "Bearer other");
    for known in [&ended, &ran] {
        for request in &known.ways(&session)[..2] {
            let (status, text) = told(&proxy, strange(request.clone())).await;
            assert_eq!(status, 200);
            assert_lost(&text);
            let forged = known.place.forged();
            let unknown = told(&proxy, strange(session.resume(&forged.at(2)))).await;
            assert_eq!(unknown, (200, text.replace(&known.place.handle, &forged.handle)));
        }
        let asked = known.ways(&session).into_iter().skip(2).chain([known.status(&session), known.poll(&session)]);
        for request in asked {
            let id = request.rpc_id();
            assert_eq!(strange(request).send(proxy.addr).await.json().await, refused(id));
        }
    }

    // The session is the same, and so is the replica.
    let (new, sse, mut response) = Known::begin(&proxy, &mut upstream, &session, 3).await;
    assert_eq!(owner(&new.place), owner(&ended.place));
    sse.finish(result(3)).await;
    assert_eq!(rest(&mut response).await[0], result(3));
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn after_a_restart_in_order_everything_is_there() {
    after_restart("stopped", false).await;
}

#[tokio::test]
async fn after_a_crash_everything_is_there_and_what_ran_has_ended_with_an_error() {
    after_restart("killed", true).await;
}

#[tokio::test]
async fn the_same_post_after_a_crash_gets_the_error_once_and_runs_nothing() {
    let dir = Dir::new("same-post");
    let mut upstream = Upstream::start().await;
    let proxy = dir.open(&upstream).await;
    let session = Session::open(&proxy, &mut upstream, V2025_11).await;
    let request = session.post(call(1));
    let (sse, mut response) = begin(&proxy, &mut upstream, &request).await;
    sse.event(progress(1)).await;
    response.event().await;
    proxy.kill().await;
    sse.closed().await;

    let proxy = dir.open(&upstream).await;
    runs_anew(&proxy, &mut upstream, &session.post(call(2)), "another ID").await;
    runs_anew(&proxy, &mut upstream, &request.clone().with("Authorization", "Bearer other"), "another caller").await;
    let mut response = request.send(proxy.addr).await.sse();
    let texts = rest(&mut response).await;
    assert_eq!(texts[0], progress(1));
    let message: Value = serde_json::from_str(&texts[1]).expect("JSON");
    assert_fault(&message, 1, ABANDONED, "proxy");
    assert_eq!(message["error"]["message"], after_a_run(OWNER_DIED));
    assert_eq!((texts.len(), message["error"]["data"]["error"].as_str()), (2, Some("owner_died")));
    assert!(upstream.is_quiet());

    // Its client has the error.
    let mut client = response.into_client();
    client.send(&request.bytes(proxy.addr)).await;
    upstream.expect("tools/call").await.json(200, result(1)).await;
    assert_eq!(client.response().await.body().await, result(1).as_bytes());
}

#[tokio::test]
async fn after_a_crash_the_error_goes_by_get_to_a_client_that_resumes_no_post() {
    let named = [("MCP_RESUME_DELIVERY__BY_GET", "raw"), ("MCP_RESUME_DELIVERY__RETRY_MS", "100")];
    for (name, variables, goes_by_get) in [("by-get", &named[..], true), ("no-get", &named[1..], false)] {
        let dir = Dir::new(name);
        let mut upstream = Upstream::start().await;
        let proxy = dir.open_with(&upstream, variables).await;
        let session = Session::open(&proxy, &mut upstream, V2025_11).await;
        let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
        let place = EventId::of(response.prime().await.id());
        proxy.kill().await;
        sse.closed().await;

        let proxy = dir.open_with(&upstream, variables).await;
        let pending = session.get().start(proxy.addr).await;
        let _server = upstream.expect("GET").await.sse().await;
        let mut get = pending.response().await.sse();
        get.prime().await;
        let mut reading = if goes_by_get { get } else { session.resume(&place.at(0)).send(proxy.addr).await.sse() };
        let message = reading.event().await.json();
        assert_fault(&message, 1, ABANDONED, "proxy");
        assert_eq!(message["error"]["data"]["error"], "owner_died");
    }
}

#[tokio::test]
async fn the_same_post_after_a_crash_runs_where_ids_are_free() {
    let dir = Dir::new("same-post-free");
    let mut upstream = Upstream::start().await;
    let proxy = dir.open(&upstream).await;
    let session = Session::open(&proxy, &mut upstream, V2025_11).await;
    runs_anew(&proxy, &mut upstream, &session.post(call_tool(1, "other")), "before").await;
    let request = session.post(call(1));
    let (sse, mut response) = begin(&proxy, &mut upstream, &request).await;
    sse.event(progress(1)).await;
    response.event().await;
    proxy.kill().await;
    sse.closed().await;
    let proxy = dir.open(&upstream).await;
    runs_anew(&proxy, &mut upstream, &request, "free IDs").await;
}

/// The record of the call has its tokens, but no connection to the server has the call any more.
#[tokio::test]
async fn a_call_that_ended_with_its_process_gets_no_progress_of_the_proxy() {
    let dir = Dir::new("beats");
    let mut upstream = Upstream::start().await;
    let open = async |upstream: &Upstream| {
        let mut command = command(upstream);
        command.args(["--store", &dir.store()]).env("MCP_RESUME_DELIVERY__PROGRESS_AFTER_SECS", "1");
        Proxy::process(command).await
    };
    let proxy = open(&upstream).await;
    let session = Session::open(&proxy, &mut upstream, V2025_11).await;
    let (_sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    beat(&mut response).await;
    proxy.kill().await;
    let proxy = open(&upstream).await;
    let (events, end) = session.resume(&place.at(0)).send(proxy.addr).await.sse().events().await;
    assert_eq!((events.len(), end), (1, End::Complete), "{events:?}");
    assert_eq!(events[0].json()["error"]["message"], after_a_run(OWNER_DIED));
}

#[tokio::test]
async fn the_gap_that_a_crash_leaves_in_a_standalone_stream_is_reported() {
    let dir = Dir::new("standalone");
    let mut upstream = Upstream::start().await;
    let proxy = dir.open(&upstream).await;
    let session = Session::open(&proxy, &mut upstream, V2025_11).await;
    let listen = async |proxy: &Proxy, upstream: &mut Upstream, request: Request| {
        let pending = request.start(proxy.addr).await;
        let sse = upstream.expect("GET").await.sse().await;
        (sse, pending.response().await.sse())
    };
    let (sse, mut response) = listen(&proxy, &mut upstream, session.get()).await;
    let place = EventId::of(response.prime().await.id());
    sse.event(progress(1)).await;
    assert_eq!(response.event().await.id(), place.at(1));
    proxy.kill().await;
    drop(sse);

    let proxy = dir.open(&upstream).await;
    let (sse, mut back) = listen(&proxy, &mut upstream, session.resume(&place.at(1))).await;
    let mut frames = vec![back.any_frame().await.expect("a beginning")];
    sse.event(progress(2)).await;
    while frames.last().is_none_or(|frame: &Frame| frame.bytes() != progress(2).as_bytes()) {
        frames.push(back.any_frame().await.expect("more"));
    }
    assert!(frames.iter().any(|frame| !frame.comments.is_empty()), "a comment: {frames:?}");
    let warnings: Vec<_> = frames.iter().filter(|frame| frame.is_event() && frame.id.is_none()).collect();
    assert_eq!(warnings.len(), 1, "the server declared logging: {frames:?}");
    assert_eq!(warnings[0].json()["method"], "notifications/message");
    assert_eq!(metric(&proxy, "mcp_resume_gaps_total").await, 1.0);
}

#[tokio::test]
async fn a_second_process_is_refused() {
    let dir = Dir::new("shared");
    let mut upstream = Upstream::start().await;
    let proxy = dir.open(&upstream).await;
    let second = dir.refused().await;
    assert_eq!(second.status.code(), Some(1));
    let told = String::from_utf8(second.stderr).expect("text");
    assert!(told.contains("is in use by another process"), "{told}");
    Session::open(&proxy, &mut upstream, V2025_11).await;
}

#[tokio::test]
async fn a_foreign_directory_is_refused_and_left_as_it_is() {
    let dir = Dir::new("foreign");
    std::fs::create_dir_all(&dir.0).expect("a directory");
    std::fs::write(dir.0.join("thesis.txt"), "chapter 1").expect("a file");
    let output = dir.refused().await;
    assert_eq!(output.status.code(), Some(1));
    let told = String::from_utf8(output.stderr).expect("text");
    assert!(told.contains("is not a store of this program") && told.contains("thesis.txt"), "{told}");
    let left: Vec<_> =
        std::fs::read_dir(&dir.0).expect("a directory").map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["thesis.txt"]);
    assert_eq!(std::fs::read_to_string(dir.0.join("thesis.txt")).expect("a file"), "chapter 1");
}

#[tokio::test]
async fn on_a_full_disk_new_calls_are_refused_and_running_ones_continue() {
    let dir = Dir::new("full");
    let (mut upstream, proxy, session) = setup_with(|config| {
        let store = DiskStore { path: dir.0.clone(), fsync: Fsync::Interval, max_bytes: 1024 * 1024 };
        config.store = Store::Disk(store);
        config.admin.address = Some(([127, 0, 0, 1], 0).into());
        config.streams.max_wait = Some(LATER);
        config.streams.retention = LATER;
    })
    .await;
    let full = (503, "the store is full\n".to_owned());
    let failures = async || metric(&proxy, "mcp_resume_store_failures_total{reason=\"full\"}").await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let (large, mut reader) = begin(&proxy, &mut upstream, &session.post(call(2))).await;
    let place = EventId::of(reader.prime().await.id());
    assert_eq!((readiness(&proxy).await.0, failures().await), (200, 0.0));
    let text = progress(1).replace("7,", &format!("\"{}\",", "x".repeat(100_000)));
    let mut events = 0;
    while readiness(&proxy).await != full {
        assert!(events < 100, "it is never full");
        large.event(&text).await;
        events += 1;
        assert_eq!(reader.event().await.id(), place.at(events));
    }
    assert!(failures().await >= 1.0);
    assert_eq!(metric(&proxy, "mcp_resume_store_ready").await, 0.0);

    let mut refused = session.post(call(3)).send(proxy.addr).await;
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    let message = refused.json().await;
    assert_fault(&message, 3, BOUND, "proxy");
    assert_eq!(
        (&message["error"]["message"], &message["error"]["data"]["mayHaveRun"]),
        (&STORE_FAILED.into(), &false.into())
    );
    assert!(upstream.is_quiet());

    // What runs goes on, and can be resumed.
    for (sse, response) in [(&sse, &mut response), (&large, &mut reader)] {
        sse.event(progress(1)).await;
        assert_eq!(response.event().await.bytes(), progress(1).as_bytes());
    }
    let mut back = session.resume(&place.at(events)).send(proxy.addr).await.sse();
    assert_eq!(back.event().await.bytes(), progress(1).as_bytes());
    large.finish(result(2)).await;
    assert_eq!(rest(&mut back).await, [result(2)]);

    // Until there is room.
    until("what is over is forgotten", async || readiness(&proxy).await.0 == 200).await;
    let (new, mut response_again) = begin(&proxy, &mut upstream, &session.post(call(4))).await;
    new.finish(result(4)).await;
    assert_eq!(rest(&mut response_again).await, [result(4)]);
    sse.finish(result(1)).await;
    assert_eq!(rest(&mut response).await, [result(1)]);
}

/// A disk of its own, for tests that run as root on Linux.
#[cfg(target_os = "linux")]
struct Volume(Dir);

#[cfg(target_os = "linux")]
impl Volume {
    fn new(name: &str) -> Volume {
        let dir = Dir::new(name);
        std::fs::create_dir_all(&dir.0).expect("a directory");
        let mut mount = std::process::Command::new("mount");
        let mounted = mount.args(["-t", "tmpfs", "-o", "size=24m", "tmpfs"]).arg(&dir.0).status();
        assert!(mounted.expect("mount runs").success(), "this test mounts a file system, which takes root");
        Volume(dir)
    }

    /// Takes the last byte of it, until the file is removed.
    fn fill(&self) -> PathBuf {
        let rest = self.0.0.join("rest");
        let mut file = std::fs::File::create(&rest).expect("a file");
        for piece in [1 << 20, 1 << 12, 1] {
            while std::io::Write::write_all(&mut file, &vec![1; piece]).is_ok() {}
        }
        rest
    }
}

#[cfg(target_os = "linux")]
impl Drop for Volume {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0.0).status();
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn after_a_crash_on_a_full_disk_stored_streams_are_read_and_new_calls_wait_for_space() {
    const KEY: &str = "Idempotency-Key";
    let volume = Volume::new("starved");
    let store = Dir(volume.0.0.join("store"));
    let mut upstream = Upstream::start().await;
    let proxy = store.open(&upstream).await;
    let session = Session::open(&proxy, &mut upstream, V2025_11).await;
    let keyed = |id: u64| session.post(call(id)).with(KEY, &format!("k-{id}"));
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let ended = EventId::of(response.prime().await.id());
    sse.finish(result(1)).await;
    response.events().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &keyed(2)).await;
    sse.finish(result(2)).await;
    response.events().await;
    let pending = keyed(3).start(proxy.addr).await;
    upstream.expect("tools/call").await.json(200, result(3)).await;
    assert_eq!(pending.response().await.body().await, result(3).as_bytes());
    let (ran, mut response) = begin(&proxy, &mut upstream, &session.post(call(4))).await;
    let running = EventId::of(response.prime().await.id());
    ran.event(progress(4)).await;
    assert_eq!(response.event().await.bytes(), progress(4).as_bytes());
    proxy.kill().await;
    ran.closed().await;
    drop(response);

    let rest_of_disk = volume.fill();
    let proxy = store.open(&upstream).await;
    let full = (503, "the store is full\n".to_owned());
    assert_eq!(readiness(&proxy).await, full);
    for _ in 0..2 {
        let mut back = session.resume(&ended.at(0)).send(proxy.addr).await.sse();
        assert_eq!(rest(&mut back).await, [result(1)]);
        let mut again = keyed(2).send(proxy.addr).await.sse();
        assert_eq!(rest(&mut again).await, [result(2)]);
        let mut again = keyed(3).send(proxy.addr).await;
        assert_eq!((again.status, again.body().await), (200, result(3).as_bytes().to_vec()));
        // Its end is not written yet.
        assert_eq!(session.resume(&running.at(0)).send(proxy.addr).await.status, 503);
        let mut refused = keyed(5).send(proxy.addr).await;
        assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
        assert_eq!(refused.json().await["error"]["data"]["mayHaveRun"], false);
    }
    assert_eq!(readiness(&proxy).await, full);
    assert!(metric(&proxy, "mcp_resume_store_failures_total{reason=\"full\"}").await >= 1.0);
    assert_eq!(metric(&proxy, "mcp_resume_store_failures_total{reason=\"unreachable\"}").await, 0.0);
    assert!(upstream.is_quiet());

    std::fs::remove_file(rest_of_disk).expect("the file is there");
    until("there is room", async || readiness(&proxy).await.0 == 200).await;
    until("what ran has ended", async || session.resume(&running.at(0)).send(proxy.addr).await.status == 200).await;
    let texts = rest(&mut session.resume(&running.at(0)).send(proxy.addr).await.sse()).await;
    assert_eq!(texts[0], progress(4));
    assert_owner_died(&texts[1], 4);
    let pending = keyed(5).start(proxy.addr).await;
    upstream.expect("tools/call").await.json(200, result(5)).await;
    assert_eq!(pending.response().await.body().await, result(5).as_bytes());
}
