//! Bounds of what a client says of itself: the proxy keeps it for each session, and repeats it in
//! requests.

use serde_json::{Map, Value};

/// Size limit of a client's name and capabilities together, in bytes of JSON.
const MAX: usize = 16 * 1024;
/// Size limit of a name with its icons. Icons may be whole images.
const MAX_WITH_ICONS: usize = 4096;
/// Size limit of a name that is read at all.
const MAX_READ: usize = 1024 * 1024;
const UNKNOWN: &str = r#"{"name":"unknown","version":"0"}"#;

/// Returns the name of a client as JSON, without icons if they are large.
///
/// # Errors
/// The reason why it is not taken.
pub(super) fn client_info(info: Option<&str>) -> Result<String, &'static str> {
    match info {
        None => Ok(UNKNOWN.to_owned()),
        Some(info) if info.len() <= MAX_WITH_ICONS => Ok(info.to_owned()),
        Some(info) if info.len() > MAX_READ => Err("clientInfo is too large"),
        Some(info) => {
            let mut members: Map<String, Value> = serde_json::from_str(info).map_err(|_| "clientInfo is no object")?;
            members.remove("icons");
            Ok(Value::Object(members).to_string())
        }
    }
}

/// Checks the size of a name and of capabilities.
///
/// # Errors
/// The reason why they are not taken.
pub(super) fn check_size(info: &str, capabilities: &str) -> Result<(), &'static str> {
    if info.len() + capabilities.len() > MAX {
        Err("the name and the capabilities of the client are too large")
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn large_icons_are_left_out_of_a_name() {
        let named = |icon: usize| json!({"name": "c", "icons": [{"src": "x".repeat(icon)}]}).to_string();
        assert_eq!(client_info(Some(&named(10))), Ok(named(10)));
        assert_eq!(client_info(Some(&named(100_000))), Ok(r#"{"name":"c"}"#.to_owned()));
        assert!(client_info(Some(&named(2_000_000))).is_err() && client_info(None).is_ok());
        assert!(check_size("{}", &"x".repeat(MAX)).is_err());
    }
}
