//! Schedule of reloads of TLS files: at an interval, and at SIGHUP. Absent: the files and their use ([`crate::tls`]).

use std::sync::Arc;
use std::time::Duration;

#[cfg(unix)]
use tokio::signal::unix;

use crate::clock;
use crate::tls::{Files, Reload, Side, Source};

/// Interval between reloads.
const INTERVAL: Duration = Duration::from_secs(5);

/// Reads some files again.
pub(crate) type Reading = Arc<dyn Fn() -> (Side, Reload) + Send + Sync>;

/// Returns the reader of `files`.
pub(crate) fn reading<S>(files: Arc<Files<S>>) -> Reading
where
    S: Source + Send + Sync + 'static,
    S::Material: Send,
{
    Arc::new(move || (S::SIDE, files.reload()))
}

/// Reads all files again at an interval, and at SIGHUP, until dropped. Calls `observe` with the outcome for each.
pub(crate) async fn renew(files: Vec<Reading>, observe: impl Fn(Side, Reload)) {
    #[cfg(unix)]
    let mut hangups = unix::signal(unix::SignalKind::hangup()).ok();
    loop {
        let next = clock::sleep(INTERVAL);
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
