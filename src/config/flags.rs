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
