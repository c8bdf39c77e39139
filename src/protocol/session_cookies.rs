//! Cookies of a load balancer before the server, kept for a session in its client's place.
//!
//! MCP clients keep no cookies, so a balancer with a sticky cookie spreads the requests of one
//! session over all servers. Owned here: the names of such cookies, and the cookies of one session
//! with their limits. Absent: the sessions (`upstream`), and the attributes of a cookie: all
//! requests of a session go to one path of one server.

use std::str::FromStr;

use http::header::SET_COOKIE;
use http::{HeaderMap, HeaderValue};

/// Most cookies of one session.
const MAX_COOKIES: usize = 8;
/// Size limit of a cookie with its name, in bytes, as in browsers.
const MAX_BYTES: usize = 4096;

/// Name of a cookie, or the beginning of such names with a `*` behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CookieName {
    name: String,
    is_beginning: bool,
}

/// A text that is no [`CookieName`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is no name of a cookie, or has a * before its end")]
pub struct InvalidCookieName;

impl FromStr for CookieName {
    type Err = InvalidCookieName;

    fn from_str(text: &str) -> Result<Self, InvalidCookieName> {
        let (name, is_beginning) = text.strip_suffix('*').map_or((text, false), |name| (name, true));
        let is_token = |byte: u8| byte.is_ascii_graphic() && !br#"()<>@,;:\"/[]?={}*"#.contains(&byte);
        if name.is_empty() || !name.bytes().all(is_token) {
            return Err(InvalidCookieName);
        }
        Ok(Self { name: name.to_owned(), is_beginning })
    }
}

impl CookieName {
    fn matches(&self, name: &[u8]) -> bool {
        if self.is_beginning { name.starts_with(self.name.as_bytes()) } else { name == self.name.as_bytes() }
    }
}

/// Change of a session's cookies by a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetCookie {
    name: Vec<u8>,
    /// The value, or `None` for a cookie that the response ends.
    value: Option<Vec<u8>>,
}

/// Takes the cookies with these names out of a response. Other cookies, and those over the size
/// limit, stay.
pub fn take(names: &[CookieName], headers: &mut HeaderMap) -> Vec<SetCookie> {
    if !headers.contains_key(SET_COOKIE) {
        return Vec::new();
    }
    let read = |value: &HeaderValue| {
        let set = parse(value.as_bytes())?;
        if names.iter().any(|name| name.matches(&set.name)) { Some(set) } else { None }
    };
    let all: Vec<HeaderValue> = headers.get_all(SET_COOKIE).iter().cloned().collect();
    headers.remove(SET_COOKIE);
    let mut taken = Vec::new();
    for value in all {
        match read(&value) {
            Some(set) => taken.push(set),
            None => drop(headers.append(SET_COOKIE, value)),
        }
    }
    taken
}

/// Parses a `Set-Cookie`. Returns `None` for one without a name, or over the size limit.
fn parse(line: &[u8]) -> Option<SetCookie> {
    let mut parts = line.split(|&byte| byte == b';').map(<[u8]>::trim_ascii);
    let pair = parts.next()?;
    let at = memchr::memchr(b'=', pair)?;
    let (name, value) = (pair[..at].trim_ascii(), pair[at + 1..].trim_ascii());
    if name.is_empty() || pair.len() > MAX_BYTES {
        return None;
    }
    let is_ended = value.is_empty() || parts.any(ends_cookie);
    Some(SetCookie { name: name.to_owned(), value: if is_ended { None } else { Some(value.to_owned()) } })
}

/// Returns true for an attribute by which servers end a cookie.
fn ends_cookie(attribute: &[u8]) -> bool {
    let text = String::from_utf8_lossy(attribute).to_ascii_lowercase();
    match text.split_once('=').map(|(name, value)| (name.trim(), value.trim())) {
        Some(("max-age", age)) => age.starts_with('-') || age == "0",
        Some(("expires", time)) => time.contains("1970"),
        _ => false,
    }
}

/// Cookies of one session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cookies(Vec<(Vec<u8>, Vec<u8>)>);

impl Cookies {
    /// Applies the changes of a response. Of too many cookies the oldest are dropped.
    pub fn apply(&mut self, changes: Vec<SetCookie>) {
        for SetCookie { name, value } in changes {
            self.0.retain(|(other, _)| *other != name);
            if let Some(value) = value {
                if self.0.len() == MAX_COOKIES {
                    self.0.remove(0);
                }
                self.0.push((name, value));
            }
        }
    }

    /// Returns true without a cookie.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the size of all cookies, in bytes.
    pub fn bytes(&self) -> usize {
        self.0.iter().map(|(name, value)| name.len() + value.len()).sum()
    }

    /// Returns the cookies as the text of a header `Cookie`. Returns `None` for cookies that are no
    /// text.
    pub fn to_text(&self) -> Option<String> {
        let pairs: Vec<Vec<u8>> = self.0.iter().map(|(name, value)| [name, &b"="[..], value].concat()).collect();
        String::from_utf8(pairs.join(&b"; "[..])).ok()
    }

    /// Reads the text of [`Self::to_text`]. Drops what is no cookie, and cookies over the limits.
    pub fn from_text(text: &str) -> Self {
        let pairs = text.split(';').filter_map(|pair| parse(pair.as_bytes()));
        let mut cookies = Self::default();
        cookies.apply(pairs.collect());
        cookies
    }

    /// Returns the header `Cookie` of a request whose client sent `own`. A cookie of the client's
    /// replaces the kept one of its name. Returns `None` if nothing is to be added.
    pub fn header(&self, own: Option<&[u8]>) -> Option<HeaderValue> {
        let own = own.unwrap_or_default();
        let has_own = |name: &[u8]| {
            let mut pairs = own.split(|&byte| byte == b';').map(<[u8]>::trim_ascii);
            pairs.any(|pair| pair.strip_prefix(name).is_some_and(|rest| rest.first() == Some(&b'=')))
        };
        let added = self.0.iter().filter(|(name, _)| !has_own(name));
        let added: Vec<Vec<u8>> = added.map(|(name, value)| [name, &b"="[..], value].concat()).collect();
        if added.is_empty() {
            return None;
        }
        let own = Some(own.to_owned()).filter(|own| !own.is_empty());
        let pairs: Vec<Vec<u8>> = own.into_iter().chain(added).collect();
        HeaderValue::from_bytes(&pairs.join(&b"; "[..])).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(texts: &[&str]) -> Vec<CookieName> {
        texts.iter().map(|text| text.parse().expect("a name")).collect()
    }

    fn response(cookies: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for cookie in cookies {
            headers.append(SET_COOKIE, HeaderValue::from_str(cookie).expect("a value"));
        }
        headers
    }

    fn sent(cookies: &Cookies, own: Option<&str>) -> Option<String> {
        let header = cookies.header(own.map(str::as_bytes))?;
        Some(header.to_str().expect("text").to_owned())
    }

    #[test]
    fn named_cookies_are_taken_and_others_stay() {
        let mut headers =
            response(&["AWSALB=a; Path=/", "AWSALBCORS=b; SameSite=None", "login=c; HttpOnly", "GCLB=\"d=e\"", "bare"]);
        let mut cookies = Cookies::default();
        cookies.apply(take(&names(&["AWSALB*", "GCLB"]), &mut headers));
        assert_eq!(sent(&cookies, None).as_deref(), Some("AWSALB=a; AWSALBCORS=b; GCLB=\"d=e\""));
        let left: Vec<_> = headers.get_all(SET_COOKIE).iter().collect();
        assert_eq!(left, ["login=c; HttpOnly", "bare"]);
    }

    #[test]
    fn a_cookie_is_replaced_and_ended() {
        let names = names(&["S"]);
        let mut cookies = Cookies::default();
        for (set, expected) in [
            ("S=1", Some("S=1")),
            ("S=2; Max-Age=60", Some("S=2")),
            ("s=3", Some("S=2")),
            ("S=2; Max-Age=0", None),
            ("S=4", Some("S=4")),
            ("S=; Path=/", None),
            ("S=5", Some("S=5")),
            ("S=5; expires=Thu, 01 Jan 1970 00:00:00 GMT", None),
        ] {
            cookies.apply(take(&names, &mut response(&[set])));
            assert_eq!(sent(&cookies, None).as_deref(), expected, "{set}");
        }
    }

    #[test]
    fn a_cookie_of_the_client_wins() {
        let mut cookies = Cookies::default();
        cookies.apply(take(&names(&["S", "T"]), &mut response(&["S=1", "T=2"])));
        assert_eq!(sent(&cookies, Some("a=b")).as_deref(), Some("a=b; S=1; T=2"));
        assert_eq!(sent(&cookies, Some("S=9; a=b")).as_deref(), Some("S=9; a=b; T=2"));
        assert_eq!(sent(&cookies, Some("T=8;S=9")), None);
        assert_eq!(sent(&cookies, Some("SS=8; xT=9")).as_deref(), Some("SS=8; xT=9; S=1; T=2"));
    }

    #[test]
    fn cookies_are_read_from_their_text() {
        let mut cookies = Cookies::default();
        cookies.apply(take(&names(&["S", "T"]), &mut response(&["S=\"a=b\"; Path=/", "T=c d"])));
        let text = cookies.to_text().expect("text");
        assert_eq!(text, "S=\"a=b\"; T=c d");
        assert_eq!(Cookies::from_text(&text), cookies);
        for damaged in ["", ";", "bare", "=x", "S="] {
            assert_eq!(Cookies::from_text(damaged), Cookies::default(), "{damaged}");
        }
    }

    #[test]
    fn cookies_have_limits() {
        let names = names(&["C*"]);
        let mut cookies = Cookies::default();
        for n in 0..MAX_COOKIES + 2 {
            cookies.apply(take(&names, &mut response(&[&format!("C{n}=x")])));
        }
        assert_eq!(sent(&cookies, None).expect("cookies").split("; ").count(), MAX_COOKIES);
        let mut headers = response(&[&format!("C0={}", "x".repeat(MAX_BYTES))]);
        assert_eq!(take(&names, &mut headers), []);
        assert!(headers.contains_key(SET_COOKIE), "it passes");
    }

    #[test]
    fn a_name_is_a_token() {
        for text in ["", "*", "a*b", "a b", "a=b", "a;b", "é"] {
            assert_eq!(text.parse::<CookieName>(), Err(InvalidCookieName), "{text}");
        }
    }
}
