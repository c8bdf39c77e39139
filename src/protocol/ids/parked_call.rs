//! Names of calls that wait for client responses in the memory of one replica.

use std::fmt;

use super::Owner;

/// Digits of the random part.
const DIGITS: usize = 32;

/// Name of a call that waits, which its client sends back as `requestState`:
/// `<owner>~<32 hexadecimal digits>`.
///
/// The owner serves routing. A client that knows the random part can continue the call only as its
/// caller.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ParkedCall {
    /// Replica that has the call.
    pub owner: Owner,
    random: u128,
}

impl ParkedCall {
    /// Creates a name from these random bits.
    pub fn from_bytes(owner: Owner, random: [u8; 16]) -> Self {
        Self { owner, random: u128::from_be_bytes(random) }
    }

    /// Parses a name. Returns `None` if the form is not the proxy's: a server's own state may be
    /// any text.
    pub fn parse(state: &str) -> Option<Self> {
        let (owner, random) = state.split_once('~')?;
        let is_digit = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'a'..=b'f');
        if random.len() != DIGITS || !random.bytes().all(is_digit) {
            return None;
        }
        Some(Self { owner: Owner::parse(owner)?, random: u128::from_str_radix(random, 16).ok()? })
    }
}

impl fmt::Display for ParkedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}~{:032x}", self.owner, self.random)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_as_it_was_written_and_nothing_else_is() {
        let call = ParkedCall::from_bytes(Owner(0xbad_cafe), [0, 9, 0xab, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        let written = call.to_string();
        assert_eq!(written, "0badcafe~0009ab00000000000000000000000001");
        assert_eq!(ParkedCall::parse(&written), Some(call));
        let other_forms = [
            written.to_uppercase(),
            written.replace('~', "."),
            written[1..].to_owned(),
            format!("{written}0"),
            written[..written.len() - 1].to_owned(),
            "0badcafe~+009ab00000000000000000000000001".to_owned(),
            "0009ab00000000000000000000000001".to_owned(),
            String::new(),
        ];
        for other in other_forms {
            assert_eq!(ParkedCall::parse(&other), None, "{other}");
        }
    }
}
