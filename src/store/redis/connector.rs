//! Connector: opens connections to the server, to the master that the sentinels name, or to a
//! Cluster.

use std::path::Path;
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::cluster::ClusterClientBuilder;
use ::redis::cluster_async::ClusterConnection;
use ::redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo,
    ProtocolVersion, PushInfo, RedisConnectionInfo, RedisError, TlsCertificates, TlsMode, Value,
};
use tokio::sync::mpsc;
use tokio_rustls::rustls::crypto::ring;

use super::address::{Address, Kind};
use super::command::{ask, cmd};
use super::failure::Failure;
use super::options::Options;

/// Attempts of one command in a Cluster, whose slot may be moving.
const CLUSTER_TRIES: u32 = 4;
/// Length of the queue to the connection's task. There are never as many commands in it, so that
/// sending never waits.
const CONNECTION_QUEUE: usize = 256;

/// Address and options of each connection.
pub(super) struct Connector {
    address: Address,
    options: Options,
}

/// A connection for calls. Dropping it ends the calls in flight.
pub(super) enum Link {
    /// One server, with the notices of its end.
    Server(MultiplexedConnection, mpsc::UnboundedReceiver<PushInfo>),
    Cluster(ClusterConnection),
}

impl Connector {
    pub(super) fn new(address: Address, options: Options) -> Self {
        if address.tls {
            // The crate uses the provider of the program, and ring is the only one here. A provider
            // that is already set stays.
            let _ = ring::default_provider().install_default();
        }
        Self { address, options }
    }

    /// Checks that connections can be made as configured: the TLS files can be read and used.
    pub(super) fn check(&self) -> Result<(), Failure> {
        if self.address.tls
            && let Some(host) = self.address.hosts.first()
        {
            self.client(host, self.login()).map_err(|error| Failure::of(&error))?;
        }
        Ok(())
    }

    /// Opens a connection for calls.
    pub(super) async fn open(&self) -> Result<Link, Failure> {
        if self.address.kind == Kind::Cluster {
            let client = self.cluster().map_err(|error| Failure::of(&error))?;
            let limit = self.options.connect_timeout + self.options.response_timeout;
            let connected = tokio::time::timeout(limit, client.get_async_connection()).await;
            let connected = connected.map_err(|_| Failure::lost("the Cluster did not reply in time"))?;
            return connected.map(Link::Cluster).map_err(|error| Failure::of(&error));
        }
        let (connection, pushed) = self.connect_to_any_host().await?;
        Ok(Link::Server(connection, pushed))
    }

    /// Opens a connection for published messages. In a Cluster every node receives all of them.
    pub(super) async fn listen(&self) -> Result<(MultiplexedConnection, mpsc::UnboundedReceiver<PushInfo>), Failure> {
        self.connect_to_any_host().await
    }

    /// Connects to the first host of the address that accepts, or to the master that the first
    /// sentinel names.
    async fn connect_to_any_host(&self) -> Result<(MultiplexedConnection, mpsc::UnboundedReceiver<PushInfo>), Failure> {
        let mut last = Failure::lost("there is nowhere to connect to");
        for host in &self.address.hosts {
            let connected = match &self.address.kind {
                Kind::Sentinel { master } => self.by_sentinel(host, master).await,
                Kind::Single | Kind::Cluster => self.connect(host, self.login()).await,
            };
            match connected {
                Ok(connected) => return Ok(connected),
                Err(failure) => last = failure,
            }
        }
        Err(last)
    }

    /// Queries a sentinel for the address of the master, and the server there for its role:
    /// <https://redis.io/docs/latest/develop/reference/sentinel-clients/>.
    async fn by_sentinel(
        &self,
        sentinel: &(String, u16),
        master: &str,
    ) -> Result<(MultiplexedConnection, mpsc::UnboundedReceiver<PushInfo>), Failure> {
        let mut login = RedisConnectionInfo::default().set_skip_set_lib_name().set_protocol(ProtocolVersion::RESP3);
        if let Some((user, password)) = &self.options.sentinel_login {
            login = login.set_username(user).set_password(password);
        }
        let (mut asked, _) = self.connect(sentinel, login).await?;
        let found = ask(&mut asked, &cmd(&[b"SENTINEL", b"get-master-addr-by-name", master.as_bytes()])).await?;
        let master_address = ::redis::from_redis_value::<Option<(String, u16)>>(found).ok().flatten();
        let master_address = master_address.ok_or_else(|| Failure::lost("the sentinels know no such master"))?;
        let (mut connection, pushed) = self.connect(&master_address, self.login()).await?;
        let role = ask(&mut connection, &cmd(&[b"ROLE"])).await?;
        let is_master =
            matches!(&role, Value::Array(role) if role.first() == Some(&Value::BulkString(b"master".into())));
        if is_master {
            Ok((connection, pushed))
        } else {
            Err(Failure::lost("the sentinels name a replica as the master"))
        }
    }

    async fn connect(
        &self,
        host: &(String, u16),
        login: RedisConnectionInfo,
    ) -> Result<(MultiplexedConnection, mpsc::UnboundedReceiver<PushInfo>), Failure> {
        let (push, pushed) = mpsc::unbounded_channel();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.options.connect_timeout))
            .set_response_timeout(Some(self.options.response_timeout))
            .set_pipeline_buffer_size(CONNECTION_QUEUE)
            .set_push_sender(push);
        let connected = async { self.client(host, login)?.get_multiplexed_async_connection_with_config(&config).await };
        let connection = connected.await.map_err(|error| Failure::of(&error))?;
        Ok((connection, pushed))
    }

    fn client(&self, host: &(String, u16), login: RedisConnectionInfo) -> Result<Client, RedisError> {
        let info = self.info(host)?.set_redis_settings(login);
        if self.address.tls { Client::build_with_tls(info, self.certificates()?) } else { Client::open(info) }
    }

    fn cluster(&self) -> Result<::redis::cluster::ClusterClient, RedisError> {
        let login = self.login().set_protocol(ProtocolVersion::RESP2);
        let nodes = self.address.hosts.iter().map(|host| Ok(self.info(host)?.set_redis_settings(login.clone())));
        let mut builder = ClusterClientBuilder::new(nodes.collect::<Result<Vec<_>, RedisError>>()?)
            .retries(CLUSTER_TRIES)
            .min_retry_wait(10)
            .max_retry_wait(200)
            .connection_timeout(self.options.connect_timeout)
            .response_timeout(self.options.response_timeout);
        if self.address.tls {
            builder = builder.tls(TlsMode::Secure).certs(self.certificates()?);
        }
        builder.build()
    }

    fn info(&self, (host, port): &(String, u16)) -> Result<ConnectionInfo, RedisError> {
        let (host, port) = (host.clone(), *port);
        let address = if self.address.tls {
            ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
        } else {
            ConnectionAddr::Tcp(host, port)
        };
        address.into_connection_info()
    }

    fn login(&self) -> RedisConnectionInfo {
        let mut login = RedisConnectionInfo::default()
            .set_db(self.address.database)
            .set_protocol(ProtocolVersion::RESP3)
            .set_skip_set_lib_name();
        if let Some(user) = &self.address.user {
            login = login.set_username(user);
        }
        if let Some(password) = &self.address.password {
            login = login.set_password(password);
        }
        login
    }

    /// Reads the certificates anew for each connection, so that the next one uses a renewed
    /// certificate.
    fn certificates(&self) -> Result<TlsCertificates, RedisError> {
        let client_tls = match &self.options.identity {
            Some(pair) => Some(ClientTlsConfig { client_cert: read(&pair.cert)?, client_key: read(&pair.key)? }),
            None => None,
        };
        let root_cert = self.options.ca.as_deref().map(read).transpose()?;
        Ok(TlsCertificates { client_tls, root_cert })
    }

    /// Returns the time limit of an attempt to connect, with all its steps.
    pub(super) fn patience(&self) -> Duration {
        self.options.connect_timeout * 3 + self.options.response_timeout * 2
    }
}

fn read(path: &Path) -> Result<Vec<u8>, RedisError> {
    std::fs::read(path).map_err(|error| {
        (ErrorKind::InvalidClientConfig, "a file cannot be read", format!("{}: {error}", path.display())).into()
    })
}
