//! Headers between clients and the server that the operator names: static headers of requests to
//! the server, and client headers that become variables of its process.
//!
//! Owned here: the names that cannot be used for either, and the sources of values. Invariant: no
//! error and no `Debug` has a value. Absent: the requests that get the headers
//! (`upstream/server/`), and the values of variables (`channel/`).

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::{env, fmt};

use http::header::{AUTHORIZATION, COOKIE};
use http::{HeaderName, HeaderValue};

use mcp_resume_protocol::client_address::describes_client;
use mcp_resume_protocol::headers::names::X_API_KEY;

/// Begins a value that is in a variable of the proxy's environment.
const IN_VARIABLE: &str = "env:";
/// Begins a value that is in a file.
const IN_FILE: &str = "file:";
/// Size limit of a value in a file, in bytes.
const MAX_FILE: u64 = 64 * 1024;

/// Headers that the proxy sets or evaluates itself.
const OWN: [&str; 19] = [
    "accept",
    "accept-encoding",
    "connection",
    "expect",
    "host",
    "idempotency-key",
    "keep-alive",
    "last-event-id",
    "origin",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "traceparent",
    "tracestate",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
];
/// Beginnings of further names of such headers.
const OWN_FAMILIES: [&str; 3] = ["access-control-", "content-", "mcp-"];

/// Variables that change how a program is found, loaded or run. In capitals.
/// Those that each program has from the proxy are among them: a client without the header would get
/// the proxy's.
const REFUSED_VARIABLES: [&str; 20] = [
    "BASHOPTS",
    "CLASSPATH",
    "ENV",
    "GCONV_PATH",
    "GLIBC_TUNABLES",
    "HOME",
    "HOSTALIASES",
    "IFS",
    "LOGNAME",
    "PATH",
    "PERLLIB",
    "PHPRC",
    "PROMPT_COMMAND",
    "PS4",
    "SHELL",
    "SHELLOPTS",
    "TERM",
    "USER",
    "ZDOTDIR",
    "_JAVA_OPTIONS",
];
/// Beginnings of further such variables.
const REFUSED_FAMILIES: [&str; 29] = [
    "BASH_",
    "BUN_",
    "CORECLR_",
    "COR_",
    "DENO_",
    "DOTNET_",
    "DYLD_",
    "ELECTRON_",
    "ERL_",
    "GIT_",
    "GRADLE_",
    "JAVA_",
    "JDK_",
    "LD_",
    "LUA_",
    "MAVEN_",
    "MCP_RESUME_",
    "NODE_",
    "NPM_",
    "OPENSSL_",
    "PERL5",
    "PHP_",
    "PIP_",
    "PYTHON",
    "RUBY",
    "RUST",
    "SSL_",
    "UV_",
    "XDG_",
];
/// End of the variables that name a proxy.
const PROXY: &str = "_PROXY";

/// Headers that are added to each request to the endpoint, in place of the client's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StaticHeaders(Vec<StaticHeader>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct StaticHeader {
    name: HeaderName,
    value: Source,
    /// True if the value is configured in a variable or a file.
    is_secret: bool,
}

/// Source of a value.
#[derive(Clone, PartialEq, Eq)]
enum Source {
    Value(HeaderValue),
    /// Variable of the proxy's environment.
    Variable(String),
    File(PathBuf),
}

/// Masked: a value may be a credential.
impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(_) => f.write_str("***"),
            Self::Variable(name) => write!(f, "{IN_VARIABLE}{name}"),
            Self::File(path) => write!(f, "{IN_FILE}{}", path.display()),
        }
    }
}

/// The value of a static header cannot be used. Names its source.
#[derive(Debug, thiserror::Error)]
pub enum HeaderError {
    /// No variable of that name, or an unreadable one.
    #[error("upstream.headers: the variable {variable}, which has the value of {header}, is not set")]
    NotSet {
        /// The header.
        header: HeaderName,
        /// The variable.
        variable: String,
    },
    /// The file cannot be read.
    #[error("upstream.headers: the file {}, which has the value of {header}, cannot be read: {error}", path.display())]
    Unreadable {
        /// The header.
        header: HeaderName,
        /// The file.
        path: PathBuf,
        /// Cause of the failure.
        #[source]
        error: io::Error,
    },
    /// The value is empty, or has characters that no header has.
    #[error("upstream.headers: the value of {header} in {source_name} is empty or cannot be sent in a header")]
    Invalid {
        /// The header.
        header: HeaderName,
        /// The variable or the file, as it is configured.
        source_name: String,
    },
}

impl StaticHeaders {
    /// Parses pairs of names and values.
    ///
    /// # Errors
    /// All problems. They have no value.
    pub(super) fn parse(pairs: &[(String, String)]) -> Result<Self, String> {
        let mut headers: Vec<StaticHeader> = Vec::new();
        let mut problems = Vec::new();
        for (name, value) in pairs {
            match StaticHeader::parse(name, value) {
                Ok(header) if headers.iter().any(|other| other.name == header.name) => {
                    problems.push(format!("{} is named twice", header.name));
                }
                Ok(header) => headers.push(header),
                Err(problem) => problems.push(problem),
            }
        }
        if problems.is_empty() { Ok(Self(headers)) } else { Err(problems.join("; ")) }
    }

    /// Returns true if no header is added.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads the values that are in variables and files. Values that were read stay.
    ///
    /// # Errors
    /// All values that cannot be used.
    pub fn load(&self) -> Result<Self, Vec<HeaderError>> {
        let (loaded, failed): (Vec<_>, Vec<_>) = self.0.iter().map(StaticHeader::load).partition(Result::is_ok);
        let errors: Vec<HeaderError> = failed.into_iter().filter_map(Result::err).collect();
        if errors.is_empty() { Ok(Self(loaded.into_iter().flatten().collect())) } else { Err(errors) }
    }

    /// Returns the headers whose values are known: all, after [`StaticHeaders::load`].
    pub fn values(&self) -> impl Iterator<Item = (&HeaderName, &HeaderValue)> {
        self.0.iter().filter_map(|StaticHeader { name, value, .. }| match value {
            Source::Value(value) => Some((name, value)),
            Source::Variable(_) | Source::File(_) => None,
        })
    }

    /// Returns the names.
    pub fn names(&self) -> impl Iterator<Item = &HeaderName> {
        self.0.iter().map(|header| &header.name)
    }

    /// Returns the names of headers that are credentials: by their name, by `others`, which are the
    /// headers that identify callers, or because their value is in a variable or a file.
    pub(super) fn credentials<'a>(&'a self, others: &'a [HeaderName]) -> impl Iterator<Item = &'a HeaderName> {
        let is_credential = |StaticHeader { name, is_secret, .. }: &&StaticHeader| {
            *is_secret || [AUTHORIZATION, COOKIE, X_API_KEY].contains(name) || others.contains(name)
        };
        self.0.iter().filter(is_credential).map(|header| &header.name)
    }
}

impl StaticHeader {
    fn parse(name: &str, value: &str) -> Result<Self, String> {
        let name = header_name(name)?;
        let source = if let Some(variable) = value.strip_prefix(IN_VARIABLE) {
            Source::Variable(variable.to_owned())
        } else if let Some(path) = value.strip_prefix(IN_FILE) {
            Source::File(path.into())
        } else {
            Source::Value(
                header_value(value.trim()).ok_or_else(|| format!("the value of {name} cannot be sent in a header"))?,
            )
        };
        let is_named = match &source {
            Source::Value(value) => !value.is_empty(),
            Source::Variable(variable) => !variable.is_empty() && !variable.contains(['=', '\0']),
            Source::File(path) => !path.as_os_str().is_empty(),
        };
        if is_named {
            let is_secret = !matches!(source, Source::Value(_));
            Ok(Self { name, value: source, is_secret })
        } else {
            Err(format!("{name} has no value: give one, env:NAME or file:PATH"))
        }
    }

    fn load(&self) -> Result<Self, HeaderError> {
        let header = self.name.clone();
        let (text, source_name) = match &self.value {
            Source::Value(_) => return Ok(self.clone()),
            Source::Variable(variable) => {
                let text = env::var(variable);
                let not_set = |_| HeaderError::NotSet { header: header.clone(), variable: variable.clone() };
                (text.map_err(not_set)?, variable.clone())
            }
            Source::File(path) => {
                let text = read_value(path);
                let unreadable = |error| HeaderError::Unreadable { header: header.clone(), path: path.clone(), error };
                (text.map_err(unreadable)?, path.display().to_string())
            }
        };
        match header_value(text.trim_start_matches('\u{feff}').trim()).filter(|value| !value.is_empty()) {
            Some(value) => Ok(Self { name: header, value: Source::Value(value), is_secret: true }),
            None => Err(HeaderError::Invalid { header, source_name }),
        }
    }
}

/// Reads a file with a value. A device may have no end.
fn read_value(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(MAX_FILE + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_FILE {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is larger than any header"));
    }
    Ok(text)
}

/// Returns a value of a header, marked as one that no debug output shows.
fn header_value(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Parses the name of a header that the operator may set or use.
fn header_name(text: &str) -> Result<HeaderName, String> {
    let name: HeaderName = text.parse().map_err(|_| format!("{text:?} is no name of a header"))?;
    let is_own = OWN.contains(&name.as_str())
        || OWN_FAMILIES.iter().any(|family| name.as_str().starts_with(family))
        || describes_client(&name);
    if is_own { Err(format!("{name} belongs to the proxy, which sets or reads it itself")) } else { Ok(name) }
}

/// A header of clients whose value becomes a variable of their process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientVariable {
    /// Name of the variable.
    pub variable: String,
    /// Name of the header.
    pub header: HeaderName,
}

impl ClientVariable {
    /// Parses pairs of variables and headers.
    ///
    /// # Errors
    /// All problems.
    pub(super) fn parse_all(pairs: &[(String, String)]) -> Result<Vec<Self>, String> {
        let (good, bad): (Vec<_>, Vec<_>) =
            pairs.iter().map(|(variable, header)| Self::parse(variable, header)).partition(Result::is_ok);
        let problems: Vec<String> = bad.into_iter().filter_map(Result::err).collect();
        if problems.is_empty() { Ok(good.into_iter().flatten().collect()) } else { Err(problems.join("; ")) }
    }

    fn parse(variable: &str, header: &str) -> Result<Self, String> {
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        let begins_well = variable.bytes().next().is_some_and(|first| !first.is_ascii_digit());
        if !begins_well || !variable.bytes().all(is_word) {
            return Err(format!("{variable:?} is no name of a variable: letters, digits and _"));
        }
        if is_refused_variable(variable) {
            return Err(format!("{variable} changes how programs are found or run, so no client may set it"));
        }
        Ok(Self { variable: variable.to_owned(), header: header_name(header)? })
    }
}

/// Returns true for a variable that no client may set. Some programs take names in small letters.
fn is_refused_variable(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    REFUSED_VARIABLES.contains(&name.as_str())
        || REFUSED_FAMILIES.iter().any(|family| name.starts_with(family))
        || name.ends_with(PROXY)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn parse(pairs: &[(&str, &str)]) -> Result<StaticHeaders, String> {
        let pairs: Vec<_> = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        StaticHeaders::parse(&pairs)
    }

    fn variable(name: &str, header: &str) -> Result<Vec<ClientVariable>, String> {
        ClientVariable::parse_all(&[(name.to_owned(), header.to_owned())])
    }

    #[test]
    fn names_of_the_proxy_are_refused_with_all_others() {
        for name in OWN.iter().copied().chain([
            "Host",
            "Content-Length",
            "content-type",
            "Mcp-Session-Id",
            "MCP-Protocol-Version",
            "Mcp-Param-Region",
            "Forwarded",
            "X-Forwarded-For",
            "x_forwarded_host",
            "X-Real-IP",
            "Access-Control-Request-Method",
        ]) {
            let problem = parse(&[(name, "hunter2")]).unwrap_err();
            assert!(problem.contains("belongs to the proxy") && !problem.contains("hunter2"), "{problem}");
            assert!(variable("TOKEN", name).unwrap_err().contains("belongs to the proxy"), "{name}");
        }
        let problem = parse(&[("Host", "hunter2"), ("a b", "hunter2"), ("x", ""), ("y", "a\nhunter2")]).unwrap_err();
        assert_eq!(problem.matches("; ").count(), 3, "{problem}");
        assert!(!problem.contains("hunter2"), "{problem}");
        assert!(parse(&[("X-A", "1"), ("x-a", "2")]).unwrap_err().contains("named twice"));
        for name in ["Authorization", "Cookie", "X-API-Key", "User-Agent", "X-Tenant", "Accept-Language"] {
            assert!(parse(&[(name, "a")]).is_ok() && variable("TOKEN", name).is_ok(), "{name}");
        }
    }

    #[test]
    fn a_value_comes_from_the_text_a_variable_or_a_file() {
        let file = std::env::temp_dir().join(format!("mcp-resume-header-{}", std::process::id()));
        fs::write(&file, "Bearer hunter2\n").unwrap();
        let in_file = format!("file:{}", file.display());
        // The tests of a crate have this variable from Cargo.
        let headers = parse(&[("x-a", "plain"), ("authorization", &in_file), ("x-b", "env:CARGO_PKG_NAME")]).unwrap();
        assert_eq!(headers.values().count(), 1, "the others are not read yet");
        let shown = format!("{:?}", headers.load().unwrap());
        assert!(!shown.contains("hunter2") && !shown.contains("plain"), "{shown}");
        let loaded = headers.load().unwrap().load().unwrap();
        let values: Vec<_> =
            loaded.values().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
        assert_eq!(values, ["x-a: plain", "authorization: Bearer hunter2", "x-b: mcp-resume-config"]);
        for (text, shown) in [("", "is empty"), (" \n", "is empty"), ("hunter2\nhunter2", "cannot be sent")] {
            fs::write(&file, text).unwrap();
            let errors = headers.load().unwrap_err();
            let [error] = &errors[..] else { panic!("{errors:?}") };
            assert!(error.to_string().contains(shown) && !error.to_string().contains("hunter2"), "{error}");
        }
        fs::remove_file(&file).unwrap();
        let missing = parse(&[("x-a", &in_file), ("x-b", "env:MCP_RESUME_HEADER_NOT_SET")]).unwrap();
        let errors: Vec<String> = missing.load().unwrap_err().iter().map(ToString::to_string).collect();
        assert!(errors[0].contains("cannot be read") && errors[1].contains("is not set"), "{errors:?}");
        for value in ["env:", "file:", ""] {
            assert!(parse(&[("x-a", value)]).unwrap_err().contains("has no value"), "{value}");
        }
    }

    #[test]
    fn credentials_are_found_by_their_name_their_use_or_their_source() {
        let headers = parse(&[
            ("authorization", "a"),
            ("cookie", "a"),
            ("x-api-key", "a"),
            ("x-user", "a"),
            ("x-secret", "env:A"),
            ("x-tenant", "a"),
        ]);
        let (headers, others) = (headers.unwrap(), [HeaderName::from_static("x-user")]);
        let names: Vec<&str> = headers.credentials(&others).map(HeaderName::as_str).collect();
        assert_eq!(names, ["authorization", "cookie", "x-api-key", "x-user", "x-secret"]);
    }

    #[test]
    fn variables_that_change_a_program_are_refused_in_any_case() {
        for name in [
            "PATH",
            "Path",
            "HOME",
            "SHELL",
            "ENV",
            "IFS",
            "LD_PRELOAD",
            "DYLD_INSERT_LIBRARIES",
            "NODE_OPTIONS",
            "npm_config_registry",
            "PYTHONPATH",
            "PERL5OPT",
            "RUBYOPT",
            "JAVA_TOOL_OPTIONS",
            "JDK_JAVA_OPTIONS",
            "GIT_SSH_COMMAND",
            "BASH_ENV",
            "SHELLOPTS",
            "ZDOTDIR",
            "ELECTRON_RUN_AS_NODE",
            "MAVEN_OPTS",
            "ERL_FLAGS",
            "https_proxy",
            "NO_PROXY",
            "SSL_CERT_FILE",
            "MCP_RESUME_UPSTREAM__URL",
        ] {
            let problem = variable(name, "X-Token").unwrap_err();
            assert!(problem.contains("no client may set it"), "{problem}");
        }
        for name in ["", "1A", "A-B", "A=B", "Ä"] {
            assert!(variable(name, "X-Token").unwrap_err().contains("is no name of a variable"), "{name}");
        }
        for name in ["GITHUB_TOKEN", "PATHS", "MY_NODE_OPTIONS", "token", "_A", "ENVIRONMENT"] {
            assert!(variable(name, "X-Token").is_ok(), "{name}");
        }
    }
}
