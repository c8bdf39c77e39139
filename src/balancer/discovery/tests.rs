use std::fs;

use super::*;
use mcp_resume_base::clock;
use mcp_resume_base::random;

/// A resolver with fixed answers; other queries hang.
#[derive(Clone, Default)]
struct FixedAnswers(Arc<Mutex<HashMap<Query, Option<Vec<Record>>>>>);

impl FixedAnswers {
    /// Sets the answer, or a failure if `None`.
    fn set(&self, name: &str, kind: RecordKind, answer: Option<Vec<Record>>) {
        self.0.lock().unwrap().insert(Query { name: name.to_owned(), kind }, answer);
    }

    fn v4(&self, name: &str, ips: &[&str]) {
        self.set(name, RecordKind::V4, Some(ips.iter().map(|ip| Record::Address(ip.parse().unwrap())).collect()));
    }

    fn v6(&self, name: &str, ips: &[&str]) {
        self.set(name, RecordKind::V6, Some(ips.iter().map(|ip| Record::Address(ip.parse().unwrap())).collect()));
    }

    fn host(&self, name: &str, ip: &str) {
        self.v4(name, &[ip]);
        self.v6(name, &[]);
    }

    fn service(&self, name: &str, records: &[(u16, u16, u16, &str)]) {
        let record = |(priority, weight, port, host): &(u16, u16, u16, &str)| Record::Service {
            priority: *priority,
            weight: *weight,
            port: *port,
            host: (*host).to_owned(),
        };
        self.set(name, RecordKind::Service, Some(records.iter().map(record).collect()));
    }

    fn hangs(&self, name: &str, kind: RecordKind) {
        self.0.lock().unwrap().remove(&Query { name: name.to_owned(), kind });
    }
}

impl Resolver for FixedAnswers {
    async fn lookup(&self, query: Query) -> Result<Vec<Record>, LookupError> {
        let answer = self.0.lock().unwrap().get(&query).cloned();
        match answer {
            Some(Some(records)) => Ok(records),
            Some(None) => Err(LookupError::Failed("SERVFAIL".to_owned())),
            None => pending().await,
        }
    }
}

fn discovery_of(targets: &[&str], file: Option<PathBuf>, table: &FixedAnswers) -> Discovery<FixedAnswers> {
    let listed = targets.iter().map(|target| target.parse().unwrap()).collect();
    Discovery::with_resolver(Sources { listed, file }, table.clone())
}

fn preference(backend: &load_balancing::Backend) -> PriorityAndWeight {
    backend.ext.get::<Endpoint>().unwrap().preference
}

/// Returns each backend as `address*weight`, with its priority if that is not 0.
async fn found(discovery: &Discovery<FixedAnswers>) -> Vec<String> {
    let (backends, enabled) = discovery.discover().await.unwrap();
    assert!(enabled.is_empty());
    let describe = |backend: &load_balancing::Backend| {
        let doubt = if backend.ext.get::<Endpoint>().unwrap().is_doubtful { "?" } else { "" };
        match preference(backend) {
            PriorityAndWeight { priority: 0, weight_percent } => format!("{}*{weight_percent}{doubt}", backend.addr),
            PriorityAndWeight { priority, weight_percent } => {
                format!("{}*{weight_percent} in priority {priority}{doubt}", backend.addr)
            }
        }
    };
    backends.iter().map(describe).collect()
}

#[tokio::test(start_paused = true)]
async fn addresses_become_backends() {
    let discovery = discovery_of(&["http://10.0.0.7:8080", "https://[::1]:80"], None, &FixedAnswers::default());
    assert_eq!(found(&discovery).await, ["10.0.0.7:8080*100", "[::1]:80*100"]);
}

#[tokio::test(start_paused = true)]
async fn a_name_yields_all_its_addresses() {
    let table = FixedAnswers::default();
    table.v4("mcp.svc", &["10.0.0.8", "10.0.0.7"]);
    table.v6("mcp.svc", &["fd00::7"]);
    let discovery = discovery_of(&["http://mcp.svc:8080"], None, &table);
    assert_eq!(found(&discovery).await, ["10.0.0.7:8080*100", "10.0.0.8:8080*100", "[fd00::7]:8080*100"]);
}

#[tokio::test(start_paused = true)]
async fn a_service_yields_its_hosts_with_priorities_and_weights() {
    let table = FixedAnswers::default();
    let records =
        [(1, 30, 81, "b."), (7, 9, 9, "c."), (1, 20, 80, "a."), (0, 1, 1, "."), (7, 9, 9, "a."), (9, 0, 80, "a.")];
    table.service("_m._tcp.svc", &records);
    table.host("a.", "10.0.0.1");
    table.host("b.", "10.0.0.2");
    table.host("c.", "10.0.0.3");
    let discovery = discovery_of(&["srv+http://_m._tcp.svc"], None, &table);
    // The first record of an address by priority decides.
    assert_eq!(
        found(&discovery).await,
        ["10.0.0.1:9*100 in priority 1", "10.0.0.1:80*67", "10.0.0.2:81*100", "10.0.0.3:9*100 in priority 1"]
    );
    // Pingora takes these backends for equal to the former ones.
    table.service("_m._tcp.svc", &[(5, 1, 81, "b."), (5, 100, 80, "a.")]);
    discovery.find_backends().await;
    let percents =
        discovery.last_backends().iter().map(|backend| preference(backend).weight_percent).collect::<Vec<_>>();
    assert_eq!(percents, [100, 1]);
}

#[test]
fn a_weight_is_relative_to_the_largest() {
    for (weight, largest, expected) in
        [(0, 0, 100), (33, 33, 100), (0, 30, 1), (10, 30, 34), (1, 65535, 1), (32767, 65535, 50), (65535, 65535, 100)]
    {
        assert_eq!(weight_percent(weight, largest), expected, "{weight} of {largest}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_backend_has_its_transport_and_the_first_target_wins() {
    let table = FixedAnswers::default();
    table.host("mcp.svc.", "10.0.0.7");
    let discovery = discovery_of(&["https://mcp.svc.:80", "http://10.0.0.7:80", "http://10.0.0.8:80"], None, &table);
    let backends = discovery.find_backends().await;
    let endpoints: Vec<_> = backends.iter().map(|backend| backend.ext.get::<Endpoint>().unwrap().clone()).collect();
    let (tls, plain) = (("mcp.svc", true), ("10.0.0.8", false));
    assert_eq!(
        endpoints,
        [tls, plain].map(|(name, is_https)| Endpoint {
            is_https,
            name: name.into(),
            preference: PriorityAndWeight::EQUAL,
            is_doubtful: false
        })
    );
}

#[tokio::test(start_paused = true)]
async fn an_error_removes_nothing_and_an_answer_with_records_does() {
    let table = FixedAnswers::default();
    table.host("mcp", "10.0.0.7");
    let discovery = discovery_of(&["http://mcp:80", "http://10.0.0.1:1"], None, &table);
    let both = ["10.0.0.1:1*100", "10.0.0.7:80*100"];
    assert_eq!(found(&discovery).await, both);
    table.set("mcp", RecordKind::V4, None);
    assert_eq!(found(&discovery).await, both);
    assert_eq!(found(&discovery).await, both);
    table.hangs("mcp", RecordKind::V4);
    assert_eq!(found(&discovery).await, both);
    table.v4("mcp", &["10.0.0.9"]);
    assert_eq!(found(&discovery).await, ["10.0.0.1:1*100", "10.0.0.9:80*100"]);
}

#[tokio::test(start_paused = true)]
async fn an_empty_answer_after_one_with_records_is_doubted() {
    let table = FixedAnswers::default();
    table.host("mcp", "10.0.0.7");
    table.service("svc", &[(0, 0, 80, "a.")]);
    table.host("a.", "10.0.0.1");
    let discovery = discovery_of(&["http://mcp:80", "srv+http://svc"], None, &table);
    assert_eq!(found(&discovery).await, ["10.0.0.1:80*100", "10.0.0.7:80*100"]);
    let doubted = ["10.0.0.1:80*100?", "10.0.0.7:80*100?"];
    table.v4("mcp", &[]);
    table.service("svc", &[]);
    for _ in 0..3 {
        assert_eq!(found(&discovery).await, doubted);
    }
    table.set("mcp", RecordKind::V4, None);
    assert_eq!(found(&discovery).await, doubted, "an error changes nothing");
    table.host("mcp", "10.0.0.8");
    table.service("svc", &[(0, 0, 80, "a.")]);
    assert_eq!(found(&discovery).await, ["10.0.0.1:80*100", "10.0.0.8:80*100"]);
}

#[tokio::test(start_paused = true)]
async fn the_failure_of_one_family_leaves_the_other() {
    let table = FixedAnswers::default();
    table.v4("mcp", &["10.0.0.7"]);
    table.set("mcp", RecordKind::V6, None);
    let discovery = discovery_of(&["http://mcp:80"], None, &table);
    assert_eq!(found(&discovery).await, ["10.0.0.7:80*100"]);
    table.v6("mcp", &["fd00::7"]);
    table.set("mcp", RecordKind::V4, None);
    assert_eq!(found(&discovery).await, ["10.0.0.7:80*100", "[fd00::7]:80*100"]);
}

#[tokio::test(start_paused = true)]
async fn the_failure_of_a_service_or_its_hosts_keeps_the_backends() {
    let table = FixedAnswers::default();
    table.service("svc", &[(0, 0, 80, "a."), (0, 0, 80, "b.")]);
    table.host("a.", "10.0.0.1");
    table.host("b.", "10.0.0.2");
    let discovery = discovery_of(&["srv+http://svc"], None, &table);
    let both = ["10.0.0.1:80*100", "10.0.0.2:80*100"];
    assert_eq!(found(&discovery).await, both);
    table.set("svc", RecordKind::Service, None);
    assert_eq!(found(&discovery).await, both);
    table.set("a.", RecordKind::V4, None);
    assert_eq!(found(&discovery).await, both);
    table.service("svc", &[(0, 0, 80, "b.")]);
    assert_eq!(found(&discovery).await, both[1..]);
    // The host was no longer queried, so its last answer was dropped.
    table.service("svc", &[(0, 0, 80, "a.")]);
    assert!(found(&discovery).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn lookups_that_hang_end_at_their_deadline() {
    let targets: Vec<String> = (0..20).map(|n| format!("srv+http://svc{n}")).collect();
    let targets: Vec<&str> = targets.iter().map(String::as_str).chain(["http://mcp:1", "http://10.0.0.1:1"]).collect();
    let discovery = discovery_of(&targets, None, &FixedAnswers::default());
    let begin = clock::now();
    assert_eq!(found(&discovery).await, ["10.0.0.1:1*100"]);
    assert_eq!(clock::now() - begin, LOOKUP_TIMEOUT * 2);
}

#[test]
fn a_failure_is_logged_once_until_it_ends() {
    let mut last_good = LastGood::<u32>::default();
    for (found, value, is_failing) in
        [(Ok(1), 1, false), (Err("bad"), 1, true), (Err("bad"), 1, true), (Ok(2), 2, false), (Err("bad"), 2, true)]
    {
        last_good.update(found, &"x");
        assert_eq!((last_good.value, last_good.is_failing), (value, is_failing));
    }
}

struct Dir(PathBuf);

impl Dir {
    fn new() -> Self {
        let dir = std::env::temp_dir().join(format!("mcp-resume-{:016x}", u64::from_be_bytes(random::bytes())));
        fs::create_dir(&dir).unwrap();
        Self(dir)
    }

    fn file(&self) -> PathBuf {
        self.0.join("replicas")
    }

    fn write(&self, text: impl AsRef<[u8]>) {
        fs::write(self.file(), text).unwrap();
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_file_adds_targets_to_the_configuration() {
    let dir = Dir::new();
    dir.write("# ours\n\nhttp://10.0.0.2:80 # the second\r\n  https://10.0.0.3:80\n#http://10.0.0.4:80");
    let discovery = discovery_of(&["http://10.0.0.1:80"], Some(dir.file()), &FixedAnswers::default());
    assert_eq!(found(&discovery).await, ["10.0.0.1:80*100", "10.0.0.2:80*100", "10.0.0.3:80*100"]);
    dir.write("# none");
    assert_eq!(found(&discovery).await, ["10.0.0.1:80*100"]);
}

#[tokio::test(start_paused = true)]
async fn an_invalid_file_keeps_its_last_targets() {
    let dir = Dir::new();
    let discovery = discovery_of(&[], Some(dir.file()), &FixedAnswers::default());
    assert!(found(&discovery).await.is_empty());
    dir.write("http://10.0.0.2:80");
    assert_eq!(found(&discovery).await, ["10.0.0.2:80*100"]);
    let too_long = vec![b'#'; 1024 * 1024 + 1];
    for bad in [&b""[..], b"http://10.0.0.3:80\n10.0.0.4:80", b"# \xFF", &too_long] {
        dir.write(bad);
        assert_eq!(found(&discovery).await, ["10.0.0.2:80*100"]);
    }
    fs::remove_file(dir.file()).unwrap();
    assert_eq!(found(&discovery).await, ["10.0.0.2:80*100"]);
    dir.write("http://10.0.0.5:80\n");
    assert_eq!(found(&discovery).await, ["10.0.0.5:80*100"]);
}

#[test]
fn an_invalid_line_is_reported() {
    let error = target_file::parse(b"# ours\nhttp://10.0.0.3:80\nhttp://h\n").unwrap_err();
    assert_eq!(error.to_string(), "line 3 needs a port, as in http://10.0.0.7:8080");
}

/// Returns true if a change is reported within `looks` reads of the file.
async fn is_reported(discovery: &Discovery<FixedAnswers>, looks: u32) -> bool {
    timeout(WATCH_INTERVAL * looks + WATCH_INTERVAL / 2, discovery.changed()).await.is_ok()
}

#[tokio::test(start_paused = true)]
async fn a_change_is_reported_for_each_way_to_replace_the_file() {
    let dir = Dir::new();
    dir.write("http://10.0.0.2:80");
    let discovery = discovery_of(&[], Some(dir.file()), &FixedAnswers::default());
    found(&discovery).await;
    assert!(!is_reported(&discovery, 3).await);

    // Rewritten in place, with the same length.
    dir.write("http://10.0.0.3:80");
    assert!(is_reported(&discovery, 1).await);
    assert!(is_reported(&discovery, 1).await, "until the next discovery");
    found(&discovery).await;
    assert!(!is_reported(&discovery, 3).await);

    // Replaced by a rename.
    fs::write(dir.0.join("next"), "http://10.0.0.4:80").unwrap();
    fs::rename(dir.0.join("next"), dir.file()).unwrap();
    assert!(is_reported(&discovery, 1).await);
    assert_eq!(found(&discovery).await, ["10.0.0.4:80*100"]);

    // Removed, and restored with the same contents.
    fs::remove_file(dir.file()).unwrap();
    assert!(!is_reported(&discovery, 3).await);
    dir.write("http://10.0.0.4:80");
    assert!(!is_reported(&discovery, 3).await);

    // Invalid contents are reported once.
    dir.write("nonsense");
    assert!(is_reported(&discovery, 1).await);
    assert_eq!(found(&discovery).await, ["10.0.0.4:80*100"]);
    assert!(!is_reported(&discovery, 3).await);
}

#[cfg(unix)]
#[tokio::test(start_paused = true)]
async fn a_swap_of_links_as_in_kubernetes_is_reported() {
    use std::os::unix::fs::symlink;

    let dir = Dir::new();
    for (version, text) in [("v1", "http://10.0.0.2:80"), ("v2", "http://10.0.0.3:80")] {
        fs::create_dir(dir.0.join(version)).unwrap();
        fs::write(dir.0.join(version).join("replicas"), text).unwrap();
    }
    symlink("v1", dir.0.join("..data")).unwrap();
    symlink("..data/replicas", dir.file()).unwrap();
    let discovery = discovery_of(&[], Some(dir.file()), &FixedAnswers::default());
    assert_eq!(found(&discovery).await, ["10.0.0.2:80*100"]);
    symlink("v2", dir.0.join("..data_tmp")).unwrap();
    fs::rename(dir.0.join("..data_tmp"), dir.0.join("..data")).unwrap();
    assert!(is_reported(&discovery, 1).await);
    assert_eq!(found(&discovery).await, ["10.0.0.3:80*100"]);
}

#[tokio::test(start_paused = true)]
async fn without_a_file_nothing_ever_changes() {
    assert!(!is_reported(&discovery_of(&[], None, &FixedAnswers::default()), 100).await);
}
