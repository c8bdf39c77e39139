//! Names of the sessions that the proxy keeps for clients. It recognises them without the server.

const PREFIX: &[u8] = b"mcp-resume-bridge-";
/// Bytes of the secret in a name, before it is written in hexadecimal digits.
const SECRET: usize = 16;

/// Returns the name of a new session.
pub fn new_session_name(secret: [u8; SECRET]) -> String {
    let digits: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}{digits}", String::from_utf8_lossy(PREFIX))
}

/// Returns true for the name of such a session, with the name of a replica before it or not.
pub fn is_session_name(name: &[u8]) -> bool {
    let start = name.len().checked_sub(PREFIX.len() + 2 * SECRET);
    start.is_some_and(|start| name[start..].starts_with(PREFIX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_from_those_of_servers() {
        let name = new_session_name([0xab; SECRET]);
        assert_eq!(name, format!("mcp-resume-bridge-{}", "ab".repeat(16)));
        assert!(is_session_name(name.as_bytes()) && is_session_name(format!("AAAA~{name}").as_bytes()));
        for other in ["", "mcp-resume-bridge-", "s-1", &name[1..], &format!("{name}0")] {
            assert!(!is_session_name(other.as_bytes()), "{other}");
        }
    }
}
