//! When the files of TLS are looked at: every now and then, and when told to. Absent: what is made of them ([`crate::tls`]).

use std::sync::Arc;
use std::time::Duration;

#[cfg(unix)]
use tokio::signal::unix;

use crate::clock;
use crate::tls::{Files, Reload, Side, Source};

/// So often the files are looked at.
const RENEWAL: Duration = Duration::from_secs(5);

/// Reads some files again.
pub(crate) type Reading = Arc<dyn Fn() -> (Side, Reload) + Send + Sync>;

/// That of `files`.
pub(crate) fn reading<S>(files: Arc<Files<S>>) -> Reading
where
    S: Source + Send + Sync + 'static,
    S::Made: Send,
{
    Arc::new(move || (S::SIDE, files.reload()))
}

/// Reads them all again every now and then, and at SIGHUP, until dropped; tells each time what became of each.
pub(crate) async fn renew(files: Vec<Reading>, observe: impl Fn(Side, Reload)) {
    #[cfg(unix)]
    let mut hangups = unix::signal(unix::SignalKind::hangup()).ok();
    loop {
        let next = clock::sleep(RENEWAL);
        #[cfg(unix)]
        match &mut hangups {
            Some(hangups) => tokio::select! {
                () = next => {}
                _ = hangups.recv() => {}
            },
            None => next.await,
        }
        #[cfg(not(unix))]
        next.await;
        for read in &files {
            let read = read.clone();
            if let Ok((side, reload)) = tokio::task::spawn_blocking(move || read()).await {
                observe(side, reload);
            }
        }
    }
}
