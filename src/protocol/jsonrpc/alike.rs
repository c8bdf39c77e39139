//! Equal ids in different spellings: a server may respond to `7` under `"7"`, `7.0` or `7e0`, and
//! every SDK of MCP finds the request.

use super::RequestId;

/// Most ids that are compared one by one. Among more ids, only ids in the usual spelling are found.
const COMPARED_MAX: usize = 64;
/// Longest text that counts as a number, in bytes. Longer ones are equal as text alone, so that an
/// id of any length costs no more than its comparison.
const NUMBER_MAX: usize = 64;

/// Returns the only id of `ids` that equals `id` as a number or as text. Returns `None` for no such
/// id, and for several different ones. `ids` yields at most `count` ids, and `contains` looks one
/// up among them.
pub fn only_alike<'a>(
    id: &RequestId,
    count: usize,
    mut ids: impl Iterator<Item = &'a RequestId>,
    contains: impl Fn(&RequestId) -> bool,
) -> Option<RequestId> {
    if count <= COMPARED_MAX {
        let number = number(id);
        let is_alike =
            |other: &&RequestId| other.text() == id.text() || (number.is_some() && number == self::number(other));
        let first = ids.by_ref().find(is_alike)?;
        return ids.filter(is_alike).all(|other| other == first).then(|| first.clone());
    }
    let usual = usual_text(id);
    let spellings = [RequestId::Number(usual.clone()), RequestId::String(usual)];
    let mut found = spellings.into_iter().filter(|spelling| contains(spelling));
    found.next().filter(|_| found.next().is_none())
}

/// Returns the number that clients read in an id: the nearest number to its text. The parser of
/// `serde_json` may miss it.
fn number(id: &RequestId) -> Option<f64> {
    let number: f64 = Some(id.text()).filter(|text| text.len() <= NUMBER_MAX)?.trim().parse().ok()?;
    number.is_finite().then_some(number)
}

/// Returns the usual text of an id: of a whole number without fraction and exponent, else its own
/// text.
fn usual_text(id: &RequestId) -> Box<str> {
    /// Every integer up to this one is an exact floating-point number: 2^53.
    const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
    match number(id) {
        Some(number) if number.fract() == 0.0 && number.abs() <= EXACT_MAX => (number as i64).to_string().into(),
        _ => id.text().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(list: &str) -> Vec<RequestId> {
        let list: Vec<&serde_json::value::RawValue> = serde_json::from_str(list).expect("a list");
        list.into_iter().map(|id| RequestId::from_json(id.get()).expect("an id")).collect()
    }

    fn found(id: &str, list: &str) -> Option<String> {
        let (id, ids) = (RequestId::from_json(id).expect("an id"), ids(list));
        only_alike(&id, ids.len(), ids.iter(), |other| ids.contains(other)).map(|id| id.to_json())
    }

    #[test]
    fn an_id_is_found_as_clients_find_it() {
        for (id, list, expected) in [
            ("\"7\"", "[7]", Some("7")),
            ("7", "[\"7\"]", Some("\"7\"")),
            ("7.0", "[7]", Some("7")),
            ("7e0", "[7]", Some("7")),
            ("70e-1", "[7]", Some("7")),
            ("\"7.0\"", "[7]", Some("7")),
            ("7", "[7.0]", Some("7.0")),
            ("\" 7\\n\"", "[7]", Some("7")),
            ("\" \"", "[0]", None),
            ("7", "[6, 7.0, 8]", Some("7.0")),
            ("9007199254740993", "[\"9007199254740993\"]", Some("\"9007199254740993\"")),
            ("9007199254740992", "[9007199254740993]", Some("9007199254740993")),
            ("7614913603533426.0", "[7614913603533426, 7614913603533427]", Some("7614913603533426")),
            ("1e400", "[\"1e400\"]", Some("\"1e400\"")),
            ("1e400", "[1e401]", None),
            ("\"inf\"", "[\"infinity\"]", None),
            ("\"a\"", "[\"b\", 1]", None),
            ("8", "[7]", None),
            ("\"\"", "[0]", None),
            ("7.5", "[7]", None),
        ] {
            assert_eq!(found(id, list).as_deref(), expected, "{id} among {list}");
        }
    }

    #[test]
    fn an_id_that_equals_different_ones_is_not_found() {
        assert_eq!(found("7.0", "[7, \"7\"]"), None);
        assert_eq!(found("9007199254740992.0", "[9007199254740992, 9007199254740993]"), None);
        assert_eq!(found("\"7\"", "[7, 7]").as_deref(), Some("7"), "two requests of one id");
    }

    #[test]
    fn every_number_of_53_bits_is_found_with_a_fraction() {
        for number in (0..1000).map(|step: u64| (1 << 53) - 1 - step * 8_999_999_999_999) {
            assert_eq!(found(&format!("{number}.0"), &format!("[{number}]")), Some(number.to_string()));
        }
    }

    #[test]
    fn a_long_id_equals_its_own_text_alone() {
        let zeros = "0".repeat(NUMBER_MAX);
        assert_eq!(found(&format!("7.{zeros}"), "[7]"), None);
        assert_eq!(found("7", &format!("[7.{zeros}]")), None);
        let text = format!("\"7.{zeros}\"");
        assert_eq!(found(&format!("7.{zeros}"), &format!("[{text}]")), Some(text));
    }

    #[test]
    fn among_many_ids_the_usual_spelling_is_found() {
        let ids: Vec<_> = (0..1000).map(|number: u32| RequestId::Number(number.to_string().into())).collect();
        let found = |id: &str| {
            let id = RequestId::from_json(id).expect("an id");
            only_alike(&id, ids.len(), ids.iter(), |other| ids.contains(other)).map(|id| id.to_json())
        };
        for id in ["\"7\"", "7.0", "7e0", "\"7.0\"", "\" 7\""] {
            assert_eq!(found(id).as_deref(), Some("7"), "{id}");
        }
        assert_eq!(found("\"1000\""), None);
    }
}
