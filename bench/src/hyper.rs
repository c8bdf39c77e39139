//! A bare hyper proxy: every request goes to the server unchanged, through hyper-util's client. For
//! comparison, and no lower bound: the sidecar has an HTTP/1.1 client of its own, which does less.
//!
//! `mcp-resume-bench-hyper HOST:PORT` prints its listening address and serves until killed, on a
//! thread for each core, each with a runtime, a listener and upstream connections of its own, like
//! the sidecar.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::thread;

use http::Uri;
use http::uri::{PathAndQuery, Scheme};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpSocket};

fn listener(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseport(true)?;
    socket.bind(address)?;
    socket.listen(4096)
}

async fn serve(listener: TcpListener, server: String) {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client: Client<_, Incoming> = Client::builder(TokioExecutor::new()).build(connector);
    loop {
        let Ok((connection, _)) = listener.accept().await else { continue };
        // Without TCP_NODELAY the connection still works, but slower.
        let _ = connection.set_nodelay(true);
        let (client, server) = (client.clone(), server.clone());
        let service = service_fn(move |mut request: hyper::Request<Incoming>| {
            let path = request.uri().path_and_query().cloned().unwrap_or(PathAndQuery::from_static("/"));
            let uri = Uri::builder().scheme(Scheme::HTTP).authority(server.as_str()).path_and_query(path).build();
            let client = client.clone();
            async move {
                *request.uri_mut() = uri?;
                Ok::<_, Box<dyn std::error::Error + Send + Sync>>(client.request(request).await?)
            }
        });
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(connection), service));
    }
}

fn main() -> ExitCode {
    let Some(server) = std::env::args().nth(1) else {
        eprintln!("usage: mcp-resume-bench-hyper HOST:PORT");
        return ExitCode::FAILURE;
    };
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build();
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let mut address = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut serving = Vec::new();
    for _ in 0..threads {
        let bound = runtime().and_then(|runtime| {
            let listener = runtime.block_on(async { listener(address) })?;
            Ok((runtime, listener.local_addr()?, listener))
        });
        let (runtime, bound, listener) = match bound {
            Ok(bound) => bound,
            Err(error) => {
                eprintln!("mcp-resume-bench-hyper: {error}");
                return ExitCode::FAILURE;
            }
        };
        address = bound;
        let server = server.clone();
        serving.push(thread::spawn(move || runtime.block_on(serve(listener, server))));
    }
    println!("listening on {address}");
    serving.into_iter().for_each(|thread| drop(thread.join()));
    ExitCode::SUCCESS
}
