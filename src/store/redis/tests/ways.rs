//! Connections to Redis of every kind, and the order of calls.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

use super::super::Identity;
use super::server::Admin;
use super::*;
use crate::redis::OpenError;
use crate::{Coordination, Renewal};

/// Uses each kind of call once.
async fn works(store: &Redis) {
    let (stream, epoch) = create(store).await;
    let following = store.subscribe(stream).wait().await.unwrap();
    assert_eq!(append(store, stream, epoch, 0).await.unwrap(), Appended::Ok);
    assert_eq!(append(store, stream, epoch, 0).await.unwrap(), Appended::Ok);
    tokio::time::timeout(PATIENCE, following.changed()).await.expect("it is told");
    store.trim(stream, epoch, Seq(1)).wait().await.unwrap();
    store.keep(stream, KEEP * 2).wait().await.unwrap();
    assert_eq!(append(store, stream, epoch, 1).await.unwrap(), Appended::Ok);
    store.trim(stream, epoch, Seq(1)).wait().await.unwrap();
    assert_eq!(count(store, stream, 1).await, 1);
    let epoch = store.take_over(stream).wait().await.unwrap();
    let (alone, first) = create(store).await;
    for after in 0..2 {
        assert_eq!(append(store, alone, first, after).await.unwrap(), Appended::Ok);
    }
    assert_eq!(count(store, alone, 0).await, 2);
    store.take_over(alone).wait().await.unwrap();
    store.expire(alone).wait().await.unwrap();
    assert_eq!(store.open_streams(store.owner()).wait().await.unwrap(), [stream]);
    assert_eq!(store.seal(stream, epoch, b"end", KEEP).wait().await.unwrap(), Appended::Ok);
    assert!(store.load(stream).wait().await.unwrap().is_some_and(|stored| stored.sealed));
    store.expire(stream).wait().await.unwrap();
    store.put(b"key", b"value", KEEP).wait().await.unwrap();
    assert!(store.claim(b"key", b"other", KEEP).wait().await.unwrap().is_some());
    assert!(store.get(b"key").wait().await.unwrap().is_some());
    store.remove(b"key").wait().await.unwrap();
    assert_eq!(store.renew(KEEP).wait().await.unwrap(), Renewal::Acquired);
    assert_eq!(store.live_replicas().wait().await.unwrap(), [store.owner()]);
    assert_eq!(store.expired_leases().wait().await.unwrap(), []);
    store.forget(Owner(77)).wait().await.unwrap();
    store.join(b"group", KEEP).wait().await.unwrap();
    assert_eq!(store.members(b"group").wait().await.unwrap(), [store.owner()]);
    store.send(store.owner(), b"message", KEEP).wait().await.unwrap();
    assert_eq!(store.receive().wait().await.unwrap(), ["message"]);
    store.release().wait().await.unwrap();
    assert_eq!(store.health(), StoreHealth::Ready);
}

async fn refused(options: Options) -> OpenError {
    match Redis::connect(options, Owner(1)).await {
        Ok(_) => panic!("it was let in"),
        Err(error) => error,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_needs_few_permissions() {
    let server = Server::start();
    let mut admin = server.admin().await;
    let allowed = "+evalsha +eval +script|load +hello +auth +select +ping +subscribe +publish +time +del +get +set +pttl +pexpire \
                   +exists +rename +hset +hget +hmget +hdel +hgetall +hincrby +xadd +xrange +xtrim +xinfo|stream +zadd +zrem +zscore \
                   +zrange +zrangebyscore +zremrangebyscore +rpush +lrange +lindex +ltrim";
    let options = Options { prefix: "mine:".to_owned(), key_wait: Duration::ZERO, ..Options::new("") };
    let url = |password| format!("redis://me:{password}@127.0.0.1:{}/2", server.port);
    admin.say(&format!("ACL SETUSER me on >p@ss ~mine:* &mine:wake:* {allowed}")).await;
    works(&*connect(&Options { url: url("p%40ss"), ..options.clone() }, 1).await).await;
    let error = refused(Options { url: url("wrong"), ..options }).await;
    assert!(error.to_string().contains("WRONGPASS") && !error.to_string().contains("wrong@"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_may_be_encrypted_both_sides_known() {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    // OpenSSL takes a certificate for self-signed whose authority has the same name.
    params.distinguished_name.push(DnType::CommonName, "authority");
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let issued = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().signed_by(&key, &authority).unwrap();
    let dir = std::env::temp_dir().join(format!("mcp-resume-{:016x}", u64::from_be_bytes(random::bytes())));
    std::fs::create_dir_all(&dir).unwrap();
    let put = |name: &str, text: String| {
        std::fs::write(dir.join(name), text).unwrap();
        dir.join(name)
    };
    let (ca, cert) = (put("ca.pem", authority.pem()), put("cert.pem", issued.pem()));
    let key = put("key.pem", key.serialize_pem());
    let path = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    let files = ["--tls-ca-cert-file", &path(&ca), "--tls-cert-file", &path(&cert), "--tls-key-file", &path(&key)];
    let server = Server::with(&[&["--save", "", "--port", "0"], &files[..]].concat());
    let options = options(&format!("rediss://127.0.0.1:{}", server.port));
    let identity = Some(Identity { cert, key });
    works(&*connect(&Options { ca: Some(ca.clone()), identity, ..options.clone() }, 1).await).await;
    let unknown = refused(Options { ca: Some(ca), ..options.clone() }).await;
    let distrusted = refused(options).await;
    for error in [unknown, distrusted] {
        assert!(matches!(error, OpenError::Unreachable(_)), "{error}");
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_failover_the_sentinels_name_the_new_master() {
    let mut master = Server::start();
    let replica =
        Server::with(&["--save", "", "--appendonly", "no", "--replicaof", &format!("127.0.0.1 {}", master.port)]);
    let sentinel = Server::with(&["--sentinel"]);
    let mut watch = sentinel.admin().await;
    watch.say(&format!("SENTINEL MONITOR the-master 127.0.0.1 {} 1", master.port)).await;
    watch.say("SENTINEL SET the-master down-after-milliseconds 500").await;
    let url = format!("redis+sentinel://127.0.0.1:1,127.0.0.1:{}/the-master", sentinel.port);
    let store = connect(&options(&url), 1).await;
    works(&store).await;
    let (stream, epoch) = create(&store).await;
    assert_eq!(append(&store, stream, epoch, 0).await.unwrap(), Appended::Ok);
    let following = store.subscribe(stream).wait().await.unwrap();
    until("the replica has followed", async || {
        watch.text("SENTINEL REPLICAS the-master").await.contains(&format!("127.0.0.1:{}", replica.port))
            && replica.admin().await.text("INFO replication").await.contains("master_link_status:up")
    })
    .await;
    let mut direct = master.admin().await;
    direct.say("WAIT 1 10000").await;
    master.kill();
    unreachable(&store).await;
    assert!(matches!(append(&store, stream, epoch, 1).await, Err(Error::Unavailable(_))));
    ready(&store).await;
    assert_eq!(append(&store, stream, epoch, 1).await.unwrap(), Appended::Ok);
    assert_eq!(count(&store, stream, 0).await, 2);
    tokio::time::timeout(PATIENCE, following.changed()).await.expect("it is told");
    let error = refused(options(&format!("redis+sentinel://127.0.0.1:{}/another", sentinel.port))).await;
    assert!(error.to_string().contains("no such master"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contents_of_a_later_version_are_left_alone() {
    let server = SERVER.get(Server::start);
    let options = options(&server.url());
    let mut admin = server.admin().await;
    let key = format!("{}keys", options.prefix);
    for (record, newer) in [("2:anything", true), ("nonsense", false)] {
        admin.say(&format!("SET {key} {record}")).await;
        let error = refused(options.clone()).await;
        assert_eq!(matches!(error, OpenError::Newer { found: 2, known: 1 }), newer, "{error}");
        assert_eq!(admin.text(&format!("GET {key}")).await, record);
    }
    assert!(matches!(refused(Options { prefix: "a{b}".to_owned(), ..options.clone() }).await, OpenError::Prefix));
    assert!(matches!(refused(Options { url: "redis:".to_owned(), ..options }).await, OpenError::Url(_)));
    assert!(matches!(refused(Options::new("redis://127.0.0.1:1")).await, OpenError::Unreachable(_)));
}

/// Makes calls without waiting between them: they take effect in their order, even if their results
/// are dropped.
async fn in_order(store: &Redis, admins: &mut [Admin]) {
    const LAST: u64 = 1500;
    let (stream, epoch) = create(store).await;
    let dropped: Vec<bool> = (0..LAST).map(|after| after % 3 == 0).collect();
    let mut waited = Vec::new();
    for after in 0..LAST {
        let appending = store.append(stream, epoch, Seq(after), &batch(after, "event"), None);
        if after % 500 == 250 {
            for admin in admins.iter_mut() {
                admin.say("SCRIPT FLUSH").await;
            }
        }
        if !dropped[after as usize] {
            waited.push(tokio::spawn(appending.wait()));
        }
    }
    for appended in waited {
        assert_eq!(appended.await.unwrap().unwrap(), Appended::Ok);
    }
    until("all have taken effect", async || count(store, stream, 0).await == LAST as usize).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_take_effect_in_order_though_the_scripts_are_forgotten() {
    let server = Server::start();
    let store = connect(&options(&server.url()), 1).await;
    in_order(&store, &mut [server.admin().await]).await;
    let mut cluster = Cluster::start();
    cluster.meet().await;
    let store = connect(&options(&cluster.url()), 1).await;
    let mut admins = Vec::new();
    for index in 0..3 {
        admins.push(cluster.node(index).admin().await);
    }
    in_order(&store, &mut admins).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_may_be_on_other_runtimes() {
    let server = SERVER.get(Server::start);
    let store = connect(&options(&server.url()), 1).await;
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let store = store.clone();
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async {
                    let (stream, epoch) = create(&store).await;
                    for after in 0..50 {
                        assert_eq!(append(&store, stream, epoch, after).await.unwrap(), Appended::Ok);
                    }
                    assert!(!store.open_streams(Owner(1)).wait().await.unwrap().is_empty());
                    store.join(b"group", KEEP).wait().await.unwrap();
                });
                // Calls that were begun here continue without this runtime.
                let (stream, epoch) = runtime.block_on(create(&store));
                drop(store.append(stream, epoch, Seq(0), &batch(0, "event"), None));
                drop(runtime);
                stream
            })
        })
        .collect();
    for thread in threads {
        let stream = tokio::task::spawn_blocking(|| thread.join().unwrap()).await.unwrap();
        until("it took effect", async || count(&store, stream, 0).await == 1).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_is_known_again_however_it_was_cut() {
    let server = SERVER.get(Server::start);
    let store = connect(&options(&server.url()), 1).await;
    let (stream, epoch) = create(&store).await;
    let append = async |after: u64, texts: &[&str]| {
        let mut batch = Batch::starting_at(Seq(after + 1));
        for text in texts {
            batch.push(b"", text.as_bytes());
        }
        store.append(stream, epoch, Seq(after), &batch, Some(b"state")).wait().await.unwrap()
    };
    let conflict = Appended::Conflict { tail: Seq(5) };
    append(0, &["a", "b"]).await;
    append(2, &["c", "d", "e"]).await;
    for (after, texts, wanted) in [
        (0, &["a"][..], Appended::Ok),
        (1, &["b", "c"], Appended::Ok),
        (3, &["d"], Appended::Ok),
        (0, &["a", "b", "c", "d", "e"], Appended::Ok),
        (3, &[], Appended::Ok),
        (3, &["x"], conflict),
        (1, &["b", "x"], conflict),
        (3, &["d", "e", "f"], conflict),
        (9, &[], conflict),
    ] {
        assert_eq!(append(after, texts).await, wanted, "{texts:?} behind {after}");
    }
    assert_eq!(count(&store, stream, 3).await, 2, "a read may begin inside a batch");
    store.trim(stream, epoch, Seq(3)).wait().await.unwrap();
    assert_eq!(append(2, &["c"]).await, conflict, "what was trimmed is not known again");
    assert_eq!(append(3, &["d"]).await, Appended::Ok);
    assert_eq!(count(&store, stream, 3).await, 2);
}
