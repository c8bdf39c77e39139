//! `x-mcp-header`: arguments of a tool that a header repeats, for intermediaries
//! ([2026-07-28, custom headers]).
//!
//! [2026-07-28, custom headers]: https://modelcontextprotocol.io/specification/2026-07-28/basic/transports#custom-headers-from-tool-parameters

use http::{HeaderName, HeaderValue};
use serde_json::Value;

use crate::channel::envelope;
use crate::jsonrpc;

const KEY: &str = "x-mcp-header";
/// Deepest schema that is looked through.
const MAX_DEPTH: usize = 64;
/// Keywords whose schemas no annotation may be in, each with true if its value has schemas by
/// names.
const OTHER_SCHEMAS: [(&str, bool); 18] = [
    ("items", false),
    ("prefixItems", false),
    ("contains", false),
    ("additionalProperties", false),
    ("unevaluatedProperties", false),
    ("unevaluatedItems", false),
    ("propertyNames", false),
    ("patternProperties", true),
    ("dependentSchemas", true),
    ("oneOf", false),
    ("anyOf", false),
    ("allOf", false),
    ("not", false),
    ("if", false),
    ("then", false),
    ("else", false),
    ("$defs", true),
    ("definitions", true),
];

/// A header that repeats an argument.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParamHeader {
    /// Name of the header behind `Mcp-Param-`.
    pub name: String,
    path: Vec<String>,
}

impl ParamHeader {
    /// Returns the text of the argument, or `None` if it is absent, null or no text, integer or
    /// truth value.
    pub fn value(&self, arguments: &Value) -> Option<String> {
        let argument = self.path.iter().try_fold(arguments, |value, key| value.get(key))?;
        match argument {
            Value::String(text) => Some(text.clone()),
            Value::Bool(_) | Value::Number(_) => Some(argument.to_string()),
            Value::Null | Value::Array(_) | Value::Object(_) => None,
        }
    }
}

/// Returns these headers for the `tools/call` in `body`. Headers of absent arguments are left out.
pub fn param_headers_of_call(headers: &[ParamHeader], body: &[u8]) -> Vec<(HeaderName, HeaderValue)> {
    if headers.is_empty() {
        return Vec::new();
    }
    let arguments = jsonrpc::parsed_member(body, &["params", "arguments"]).unwrap_or_default();
    let of = |header: &ParamHeader| {
        let value = envelope::encoded(&header.value(&arguments)?)?;
        Some((HeaderName::try_from(format!("mcp-param-{}", header.name)).ok()?, value))
    };
    headers.iter().filter_map(of).collect()
}

/// A schema with an annotation that breaks the rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct InvalidAnnotation;

/// Returns the headers of a tool with this schema.
///
/// # Errors
/// If an annotation breaks the rules of the specification: clients do not see such a tool.
pub(super) fn param_headers(schema: &Value) -> Result<Vec<ParamHeader>, InvalidAnnotation> {
    let mut found = Vec::new();
    visit(schema, &mut Vec::new(), true, &mut found)?;
    Ok(found)
}

fn visit(
    schema: &Value,
    path: &mut Vec<String>,
    is_reachable: bool,
    found: &mut Vec<ParamHeader>,
) -> Result<(), InvalidAnnotation> {
    let Some(members) = schema.as_object() else { return Ok(()) };
    if path.len() > MAX_DEPTH {
        return Err(InvalidAnnotation);
    }
    if let Some(name) = members.get(KEY) {
        let name = name.as_str().filter(|name| is_token(name)).ok_or(InvalidAnnotation)?;
        let is_primitive =
            matches!(members.get("type").and_then(Value::as_str), Some("string" | "integer" | "boolean"));
        let is_used = found.iter().any(|other| other.name.eq_ignore_ascii_case(name));
        if !is_reachable || path.is_empty() || !is_primitive || is_used {
            return Err(InvalidAnnotation);
        }
        found.push(ParamHeader { name: name.to_owned(), path: path.clone() });
    }
    for (key, property) in members.get("properties").and_then(Value::as_object).into_iter().flatten() {
        path.push(key.clone());
        visit(property, path, is_reachable, found)?;
        path.pop();
    }
    for (keyword, has_names) in OTHER_SCHEMAS {
        let Some(value) = members.get(keyword) else { continue };
        let schemas: Vec<&Value> = match value {
            Value::Array(all) => all.iter().collect(),
            Value::Object(all) if has_names => all.values().collect(),
            _ => vec![value],
        };
        path.push(keyword.to_owned());
        for schema in schemas {
            visit(schema, path, false, found)?;
        }
        path.pop();
    }
    Ok(())
}

/// Returns true for a token of RFC 9110.
fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn annotated_arguments_have_headers() {
        let schema = json!({"type": "object", "properties": {
            "region": {"type": "string", KEY: "Region"},
            "where": {"type": "object", "properties": {"n": {"type": "integer", KEY: "N"}, "b": {"type": "boolean", KEY: "B"}}},
        }});
        let headers = param_headers(&schema).expect("valid annotations");
        let arguments = json!({"region": "eu", "where": {"n": 7, "b": null}});
        let values: Vec<_> = headers.iter().map(|header| (header.name.as_str(), header.value(&arguments))).collect();
        assert_eq!(values.len(), 3);
        for expected in [("Region", Some("eu".to_owned())), ("N", Some("7".to_owned())), ("B", None)] {
            assert!(values.contains(&expected), "{expected:?}");
        }
    }

    #[test]
    fn annotations_that_break_the_rules_are_found() {
        let property = |schema: Value| json!({"type": "object", "properties": {"a": schema}});
        let deep = (0..MAX_DEPTH + 2).fold(json!({}), |schema, _| property(schema));
        for schema in [
            json!({KEY: "A", "type": "string"}),
            property(json!({"type": "number", KEY: "A"})),
            property(json!({"type": "string", KEY: "a b"})),
            property(json!({"type": "string", KEY: ""})),
            property(json!({"type": "string", KEY: 7})),
            property(json!({"items": {"type": "string", KEY: "A"}})),
            json!({"$defs": {"a": {"type": "string", KEY: "A"}}}),
            json!({"properties": {"a": {"type": "string", KEY: "A"}, "b": {"type": "string", KEY: "a"}}}),
            deep,
        ] {
            assert_eq!(param_headers(&schema), Err(InvalidAnnotation), "{schema}");
        }
        assert_eq!(param_headers(&json!(true)), Ok(Vec::new()));
    }
}
