//! The DNS of the system: its servers, its search list, its hosts file.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{ResolverConfig, ResolverOpts};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError, NoRecords};
use hickory_resolver::proto::op::ResponseCode;
use hickory_resolver::proto::rr::{Name, RData, RecordType};
use hickory_resolver::system_conf::read_system_conf;

use super::{LookupError, Query, Record, RecordKind, Resolver};
use mcp_resume_base::clock;
use mcp_resume_base::sync;

/// Time until a query is repeated to a server that does not answer.
const RETRY: Duration = Duration::from_secs(1);
/// Maximum age of the system's files before they are read again.
const REREAD: Duration = Duration::from_secs(30);

/// A resolver that queries the servers of the system, without a cache.
#[derive(Default)]
pub struct Dns(Mutex<Option<(Instant, Arc<System>)>>);

/// Contents of the system's files.
struct System {
    resolver: TokioResolver,
    search: Vec<Name>,
    ndots: usize,
}

impl Dns {
    fn system(&self) -> Result<Arc<System>, NetError> {
        let mut system = sync::lock(&self.0);
        let now = clock::now();
        if let Some((read_at, system)) = &*system
            && now.saturating_duration_since(*read_at) < REREAD
        {
            return Ok(system.clone());
        }
        let read = Arc::new(System::read()?);
        *system = Some((now, read.clone()));
        Ok(read)
    }
}

impl Resolver for Dns {
    async fn lookup(&self, query: Query) -> Result<Vec<Record>, LookupError> {
        let failed = |error: NetError| LookupError::Failed(error.to_string());
        self.system().map_err(failed)?.lookup(&query).await.map_err(failed)
    }
}

impl System {
    fn read() -> Result<Self, NetError> {
        let (config, options) = read_system_conf()?;
        Self::new(config, options)
    }

    fn new(config: ResolverConfig, mut options: ResolverOpts) -> Result<Self, NetError> {
        (options.timeout, options.attempts) = (RETRY, 2);
        (options.positive_max_ttl, options.negative_max_ttl) = (Some(Duration::ZERO), Some(Duration::ZERO));
        let (search, ndots) = (config.search().to_vec(), options.ndots);
        let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
        *builder.options_mut() = options;
        Ok(Self { resolver: builder.build()?, search, ndots })
    }

    /// Returns the first answer with records among those for the candidate names. The resolver's
    /// own search is not used: it forgets the failure of one name if the next does not exist.
    async fn lookup(&self, query: &Query) -> Result<Vec<Record>, NetError> {
        let mut failure = None;
        for name in candidates(&query.name, &self.search, self.ndots)? {
            match self.records(name, query.kind).await {
                Ok(records) if records.is_empty() => {}
                Ok(records) => return Ok(records),
                Err(error) => failure = Some(error),
            }
        }
        failure.map_or(Ok(Vec::new()), Err)
    }

    async fn records(&self, name: Name, kind: RecordKind) -> Result<Vec<Record>, NetError> {
        let of_type = match kind {
            RecordKind::V4 => RecordType::A,
            RecordKind::V6 => RecordType::AAAA,
            RecordKind::Service => RecordType::SRV,
        };
        match self.resolver.lookup(name, of_type).await {
            Ok(lookup) => Ok(lookup.answers().iter().filter_map(|answer| record(&answer.data)).collect()),
            Err(error) if is_negative(&error) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}

/// Returns the names that `name` may stand for, the likeliest first: see `search` and `ndots` in
/// resolv.conf(5).
fn candidates(name: &str, search: &[Name], ndots: usize) -> Result<Vec<Name>, NetError> {
    let name = Name::from_str_relaxed(name)?;
    let mut complete = name.clone();
    complete.set_fqdn(true);
    if name.is_fqdn() {
        return Ok(vec![complete]);
    }
    // Names that are too long are left out.
    let mut names: Vec<Name> = search.iter().filter_map(|domain| name.clone().append_domain(domain).ok()).collect();
    let dots = usize::from(name.num_labels()).saturating_sub(1);
    names.insert(if dots >= ndots { 0 } else { names.len() }, complete);
    Ok(names)
}

/// Returns true if a server denied the existence of records. A referral to other servers does not.
fn is_negative(error: &NetError) -> bool {
    let NetError::Dns(DnsError::NoRecordsFound(NoRecords { response_code, soa, ns, .. })) = error else { return false };
    let is_answer = matches!(response_code, ResponseCode::NXDomain | ResponseCode::NoError);
    is_answer && (soa.is_some() || ns.is_none())
}

fn record(data: &RData) -> Option<Record> {
    match data {
        RData::SRV(srv) => Some(Record::Service {
            priority: srv.priority,
            host: srv.target.to_ascii().to_ascii_lowercase(),
            port: srv.port,
            weight: srv.weight,
        }),
        data => data.ip_addr().map(Record::Address),
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use hickory_resolver::config::{ConnectionConfig, NameServerConfig};
    use hickory_resolver::net::ForwardNSData;
    use hickory_resolver::proto::op::{Message, MessageType, Query as DnsQuery};
    use hickory_resolver::proto::rr::rdata::{NS, SOA, SRV};
    use tokio::net::UdpSocket;

    use super::*;

    fn name(text: &str) -> Name {
        Name::from_ascii(text).unwrap()
    }

    #[test]
    fn names_are_completed_as_in_resolv_conf() {
        let search = [name("default.svc.cluster.local."), name("cluster.local.")];
        for (text, ndots, meant) in [
            ("mcp.", 5, &["mcp."][..]),
            ("mcp", 1, &["mcp.default.svc.cluster.local.", "mcp.cluster.local.", "mcp."]),
            ("a.b", 1, &["a.b.", "a.b.default.svc.cluster.local.", "a.b.cluster.local."]),
            ("a.b", 5, &["a.b.default.svc.cluster.local.", "a.b.cluster.local.", "a.b."]),
            ("_m._tcp.a", 2, &["_m._tcp.a.", "_m._tcp.a.default.svc.cluster.local.", "_m._tcp.a.cluster.local."]),
        ] {
            let names = candidates(text, &search, ndots).unwrap();
            assert_eq!(names.iter().map(Name::to_ascii).collect::<Vec<_>>(), meant, "{text} {ndots}");
            assert!(names.iter().all(Name::is_fqdn));
        }
    }

    #[test]
    fn only_a_negative_answer_denies_records() {
        let none = |code| NoRecords::new(DnsQuery::default(), code);
        let says = |records: NoRecords| is_negative(&NetError::Dns(DnsError::NoRecordsFound(records)));
        assert!(says(none(ResponseCode::NXDomain)));
        assert!(says(none(ResponseCode::NoError)));
        assert!(!says(none(ResponseCode::ServFail)));
        let ns = hickory_resolver::proto::rr::Record::from_rdata(name("a."), 1, RData::NS(NS(name("b."))));
        let mut referral = none(ResponseCode::NoError);
        referral.ns = Some([ForwardNSData { ns, glue: Arc::new([]) }].into());
        assert!(!says(referral.clone()));
        let soa = SOA::new(name("a."), name("a."), 1, 1, 1, 1, 1);
        referral.soa = Some(Box::new(hickory_resolver::proto::rr::Record::from_rdata(name("a."), 1, soa)));
        assert!(says(referral));
        for error in [
            NetError::Timeout,
            NetError::NoConnections,
            NetError::Dns(DnsError::ResponseCode(ResponseCode::ServFail)),
            NetError::Dns(DnsError::ResponseCode(ResponseCode::Refused)),
        ] {
            assert!(!is_negative(&error), "{error}");
        }
    }

    #[test]
    fn records_are_converted() {
        let srv = RData::SRV(SRV::new(1, 2, 8080, name("Pod-0.MCP.svc.")));
        let host = "pod-0.mcp.svc.".to_owned();
        assert_eq!(record(&srv), Some(Record::Service { priority: 1, host, port: 8080, weight: 2 }));
        assert_eq!(record(&RData::NS(NS(name("b.")))), None);
        let address = "10.0.0.7".parse().unwrap();
        assert_eq!(record(&RData::from(address)), Some(Record::Address(address)));
    }

    /// Answers as the last label but one demands: `there` has one more A record with each query.
    async fn serve(socket: UdpSocket) {
        let (mut packet, mut queries) = ([0; 512], 0);
        loop {
            let (read, from) = socket.recv_from(&mut packet).await.unwrap();
            let mut message = Message::from_vec(&packet[..read]).unwrap();
            let query = message.queries[0].clone();
            message.metadata.message_type = MessageType::Response;
            match query.name().to_ascii().rsplit('.').nth(2).unwrap_or_default() {
                "broken" => message.metadata.response_code = ResponseCode::ServFail,
                "gone" => message.metadata.response_code = ResponseCode::NXDomain,
                "there" if query.query_type() == RecordType::A => {
                    queries += 1;
                    for last in 1..=queries {
                        let data = RData::from(IpAddr::from([10, 0, 0, last]));
                        message.add_answer(hickory_resolver::proto::rr::Record::from_rdata(
                            query.name().clone(),
                            60,
                            data,
                        ));
                    }
                }
                _ => {}
            }
            socket.send_to(&message.to_vec().unwrap(), from).await.unwrap();
        }
    }

    #[tokio::test]
    async fn each_lookup_queries_the_server_and_a_failure_is_no_answer() {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let mut connection = ConnectionConfig::udp();
        connection.port = socket.local_addr().unwrap().port();
        let server = NameServerConfig::new(IpAddr::from([127, 0, 0, 1]), true, vec![connection]);
        let config = ResolverConfig::from_parts(None, vec![name("broken.test."), name("gone.test.")], vec![server]);
        let system = System::new(config, ResolverOpts::default()).unwrap();
        let serving = tokio::spawn(serve(socket));
        let ask = async |name: &str, kind| system.lookup(&Query { name: name.to_owned(), kind }).await;
        for addresses in 1..=3 {
            assert_eq!(ask("there.test.", RecordKind::V4).await.unwrap().len(), addresses);
        }
        assert!(ask("there.test.", RecordKind::V6).await.unwrap().is_empty());
        assert!(ask("gone.test.", RecordKind::V4).await.unwrap().is_empty());
        assert!(ask("nothing.test.", RecordKind::Service).await.unwrap().is_empty());
        assert!(ask("broken.test.", RecordKind::V4).await.is_err());
        // The first candidate fails, and the others do not exist.
        assert!(ask("mcp", RecordKind::V4).await.is_err());
        serving.abort();
    }
}
