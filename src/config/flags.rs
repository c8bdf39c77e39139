//! Values of the command line.

/// Unchecked values of the command line; each overrides every other layer.
///
/// Has no `Debug`: an upstream's URL may carry a key in its query.
#[derive(Clone, Default)]
pub struct Flags {
    /// `--upstream`, in place of `upstream.url`.
    pub upstream: Option<String>,
    /// `--listen`, in place of `listen.address`.
    pub listen: Option<String>,
    /// `--admin`, in place of `admin.address`.
    pub admin: Option<String>,
    /// `--store`, in place of `store.kind`.
    pub store: Option<String>,
    /// `--upstream-sse`, in place of `upstream.sse_url`.
    pub upstream_sse: Option<String>,
    /// Words behind `--`, in place of `upstream.command`; empty for none.
    pub command: Vec<String>,
}

/// Unchecked values of the command line of `connect`, beside [`Flags`].
///
/// Has no `Debug`: a header may be a credential.
#[derive(Clone, Default)]
pub struct ConnectFlags {
    /// `--header`, `--header-file` and `--bearer`, in place of `upstream.headers`.
    pub headers: Vec<(String, String)>,
    /// `--wait-secs`.
    pub wait_secs: Option<String>,
    /// `--max-wait-secs`.
    pub max_wait_secs: Option<String>,
    /// `--repeat`.
    pub repeat: Option<String>,
    /// `--remember`.
    pub remember: Option<String>,
    /// `--impatient`; empty for none.
    pub impatient: Vec<String>,
    /// `--ca-file`.
    pub ca_file: Option<String>,
    /// `--ipv4`.
    pub ipv4: Option<String>,
}
