//! Elements of a header that is a list ([RFC 9110 §5.6.1]).
//!
//! [RFC 9110 §5.6.1]: https://www.rfc-editor.org/rfc/rfc9110#section-5.6.1

use std::ops::Range;

/// Returns the places of the elements of a list, without the spaces around each. Empty elements are
/// left out. A separator inside quotes separates nothing.
pub fn elements(text: &str, separator: u8) -> Vec<Range<usize>> {
    let (mut found, mut begin) = (Vec::new(), 0);
    let (mut is_quoted, mut is_escaped) = (false, false);
    let mut push = |element: &str, begin: usize| {
        let begin = begin + element.len() - element.trim_start().len();
        let element = element.trim();
        if !element.is_empty() {
            found.push(begin..begin + element.len());
        }
    };
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            byte if byte == separator && !is_quoted => {
                push(&text[begin..at], begin);
                begin = at + 1;
            }
            _ => {}
        }
    }
    push(&text[begin..], begin);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_separator_inside_quotes_separates_nothing() {
        for (list, expected) in [
            ("", &[][..]),
            (" , ,", &[]),
            ("a, b ,c", &["a", "b", "c"]),
            (r#"a="x,y", b="\",\"","#, &[r#"a="x,y""#, r#"b="\",\"""#]),
            (r#"a="x, b"#, &[r#"a="x, b"#]),
        ] {
            let found: Vec<&str> = elements(list, b',').into_iter().map(|at| &list[at]).collect();
            assert_eq!(found, expected, "{list}");
        }
    }
}
