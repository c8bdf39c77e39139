//! The environment of a child. The proxy's environment holds its configuration and perhaps secrets.
//! So a child gets only the variables that the MCP SDKs pass on, and the configured ones.

use std::ffi::OsString;

use super::settings::Settings;

/// Variables of the proxy that every child gets, as with the SDKs' clients.
const INHERITED: [&str; 6] = ["HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER"];
/// Variables whose values are no secrets, beside [`INHERITED`]: a masked folder would hide the
/// place of an error.
const SHOWN: [&str; 4] = ["LANG", "OLDPWD", "PWD", "SHLVL"];
/// Start of a value with the definition of a shell function: a shell in the child would run it. The
/// SDKs' clients leave such values out.
const SHELL_FUNCTION: &[u8] = b"()";

/// Returns the values that the configuration gives, or names. They may be secrets.
pub(super) fn named_values(settings: &Settings) -> Vec<String> {
    let is_shown = |name: &&String| INHERITED.iter().chain(&SHOWN).any(|shown| shown == *name);
    let inherited = settings.inherit_env.iter().filter(|name| !is_shown(name)).filter_map(std::env::var_os);
    let inherited = inherited.map(|value| value.to_string_lossy().into_owned());
    inherited.chain(settings.env.iter().map(|(_, value)| value.clone())).collect()
}

/// Returns the variables of a child. A configured value replaces an inherited one.
pub(super) fn variables(settings: &Settings) -> Vec<(OsString, OsString)> {
    let inherited = INHERITED.into_iter().chain(settings.inherit_env.iter().map(String::as_str));
    let inherited = inherited.filter_map(|name| Some((OsString::from(name), std::env::var_os(name)?)));
    let inherited = inherited.filter(|(_, value)| !value.as_encoded_bytes().starts_with(SHELL_FUNCTION));
    let configured = settings.env.iter().map(|(name, value)| (name.into(), value.into()));
    inherited.chain(configured).collect()
}
