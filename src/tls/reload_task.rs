//! The task that reloads TLS files, at an interval and at SIGHUP. Each process has one, for all its
//! sides.
//!
//! Absent: the reload of one side's files, with the decision whether they can be used
//! ([`Files::reload`]).

use std::sync::Arc;
use std::time::Duration;

#[cfg(unix)]
use tokio::signal::unix;

use crate::{Files, ReloadOutcome, Side, Source};
use mcp_resume_base::clock;

/// Interval between two reloads.
const INTERVAL: Duration = Duration::from_secs(5);

/// Reloads the files of one side.
pub type Reloader = Arc<dyn Fn() -> (Side, ReloadOutcome) + Send + Sync>;

/// Returns the reloader of `files`.
pub fn reloader<S>(files: Arc<Files<S>>) -> Reloader
where
    S: Source + Send + Sync + 'static,
    S::Material: Send,
{
    Arc::new(move || (S::SIDE, files.reload()))
}

/// Reloads all files at each interval and at SIGHUP, until dropped, and passes each outcome to
/// `observe`.
pub async fn run(reloaders: Vec<Reloader>, observe: impl Fn(Side, ReloadOutcome)) {
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
        for reload in &reloaders {
            let reload = reload.clone();
            if let Ok((side, outcome)) = tokio::task::spawn_blocking(move || reload()).await {
                observe(side, outcome);
            }
        }
    }
}
