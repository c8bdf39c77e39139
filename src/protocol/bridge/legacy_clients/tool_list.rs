//! Lists of tools: schemas that clients of the revisions with sessions can read, and what calls of
//! each tool need.

use std::collections::HashSet;
use std::ops::Range;

use serde_json::{Value, json};

use super::param_headers::{ParamHeader, param_headers};
use crate::jsonrpc;

/// Facts about a tool that its calls need.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ToolFacts {
    /// Headers that repeat arguments.
    pub headers: Vec<ParamHeader>,
    /// True if clients know its results as objects around the server's.
    pub is_wrapped: bool,
}

/// Returns each tool of a list by its name, as the server sent it, with what its calls need, or
/// `None` if they need nothing.
pub fn tool_facts(message: &[u8]) -> Vec<(String, Option<ToolFacts>)> {
    let mut found = Vec::new();
    for_each_tool(message, |tool| {
        let Some(name) = jsonrpc::string_member(tool.as_bytes(), &["name"]) else { return };
        let facts =
            ToolFacts { headers: headers_of(tool).unwrap_or_default(), is_wrapped: needs_wrapping(tool).is_some() };
        found.push((name, Some(facts).filter(|facts| *facts != ToolFacts::default())));
    });
    found
}

/// Returns the list in the form for clients. Each output schema describes an object, and no
/// property has `true` or `false` as its schema. A tool with invalid annotations is left out.
pub(super) fn edited(message: &[u8]) -> Vec<u8> {
    let mut splices: Vec<(Range<usize>, String)> = Vec::new();
    let mut kept = Vec::new();
    let mut is_shorter = false;
    for_each_tool(message, |tool| {
        if headers_of(tool).is_none() {
            is_shorter = true;
            return;
        }
        let mut edits = Vec::new();
        if let Some(schema) = needs_wrapping(tool) {
            edits.push((jsonrpc::span(tool.as_bytes(), schema), wrapped(schema)));
        } else {
            edits.extend(boolean_properties(tool, &["outputSchema", "properties"]));
        }
        edits.extend(boolean_properties(tool, &["inputSchema", "properties"]));
        let edited = String::from_utf8(jsonrpc::splice(tool.as_bytes(), edits)).unwrap_or_default();
        if edited != tool {
            splices.push((jsonrpc::span(message, tool), edited.clone()));
        }
        kept.push(edited);
    });
    if is_shorter && let Some(tools) = jsonrpc::member(message, &["result", "tools"]) {
        splices = vec![(jsonrpc::span(message, tools), format!("[{}]", kept.join(",")))];
    }
    jsonrpc::splice(message, splices)
}

/// Returns the list without tools whose annotations break the rules: clients on HTTP do not see
/// them. Returns `None` if there are none.
pub fn without_invalid_tools(message: &[u8]) -> Option<Vec<u8>> {
    let mut kept = Vec::new();
    let mut is_shorter = false;
    for_each_tool(message, |tool| match headers_of(tool) {
        Some(_) => kept.push(tool.to_owned()),
        None => is_shorter = true,
    });
    let tools = jsonrpc::member(message, &["result", "tools"]).filter(|_| is_shorter)?;
    Some(jsonrpc::splice(message, vec![(jsonrpc::span(message, tools), format!("[{}]", kept.join(",")))]))
}

/// Returns the list with the tools of these names as tools without an output schema.
pub fn without_output_schemas(message: &[u8], names: &[String]) -> Vec<u8> {
    let names: HashSet<&str> = names.iter().map(String::as_str).collect();
    let mut splices = Vec::new();
    for_each_tool(message, |tool| {
        if jsonrpc::string_member(tool.as_bytes(), &["name"]).is_some_and(|name| names.contains(name.as_str()))
            && let Some(without) = jsonrpc::without_members(tool.as_bytes(), &[], &["outputSchema"])
        {
            splices.push((jsonrpc::span(message, tool), String::from_utf8(without).unwrap_or_default()));
        }
    });
    jsonrpc::splice(message, splices)
}

fn for_each_tool(message: &[u8], visit: impl FnMut(&str)) {
    if let Some(tools) = jsonrpc::member(message, &["result", "tools"]).filter(|tools| tools.starts_with('[')) {
        jsonrpc::for_each_element(tools, visit);
    }
}

/// Returns the headers of a tool, or `None` if an annotation breaks the rules.
fn headers_of(tool: &str) -> Option<Vec<ParamHeader>> {
    // Most schemas have none.
    if !tool.contains("x-mcp-header") {
        return Some(Vec::new());
    }
    let schema =
        jsonrpc::member(tool.as_bytes(), &["inputSchema"]).and_then(|schema| serde_json::from_str(schema).ok());
    schema.map_or(Some(Vec::new()), |schema: Value| param_headers(&schema).ok())
}

/// Returns the output schema if it does not describe an object.
fn needs_wrapping(tool: &str) -> Option<&str> {
    let schema = jsonrpc::member(tool.as_bytes(), &["outputSchema"]).filter(|schema| *schema != "null")?;
    let kind = jsonrpc::member(tool.as_bytes(), &["outputSchema", "type"]);
    if kind == Some(r#""object""#) { None } else { Some(schema) }
}

/// Returns the schema of an object around results of this schema.
fn wrapped(schema: &str) -> String {
    let Ok(mut schema) = serde_json::from_str::<Value>(schema) else { return r#"{"type":"object"}"#.to_owned() };
    // References within a named schema are resolved against its name.
    if schema.get("$id").is_none() {
        move_references(&mut schema);
    }
    let schema = if schema.is_boolean() { json!({}) } else { schema };
    json!({"type": "object", "properties": {"result": schema}, "required": ["result"]}).to_string()
}

fn move_references(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            for (key, value) in members {
                match value {
                    Value::String(reference) if key == "$ref" || key == "$dynamicRef" => {
                        if reference == "#" || reference.starts_with("#/") {
                            *reference = format!("#/properties/result{}", &reference[1..]);
                        }
                    }
                    Value::Object(_) | Value::Array(_) => move_references(value),
                    Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
                }
            }
        }
        Value::Array(all) => all.iter_mut().for_each(move_references),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Returns the edits that replace the properties' schemas `true` and `false` by objects.
fn boolean_properties(tool: &str, path: &'static [&'static str]) -> Vec<(Range<usize>, String)> {
    let Some(properties) = jsonrpc::member(tool.as_bytes(), path).filter(|properties| properties.starts_with('{'))
    else {
        return Vec::new();
    };
    let Ok(members) =
        serde_json::from_str::<std::collections::BTreeMap<String, &serde_json::value::RawValue>>(properties)
    else {
        return Vec::new();
    };
    let edit = |schema: &&serde_json::value::RawValue| {
        let object = match schema.get() {
            "true" => "{}",
            "false" => r#"{"not":{}}"#,
            _ => return None,
        };
        Some((jsonrpc::span(tool.as_bytes(), schema.get()), object.to_owned()))
    };
    members.values().filter_map(edit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(tools: &Value) -> Vec<u8> {
        json!({"jsonrpc": "2.0", "id": 1, "result": {"tools": tools, "nextCursor": "c"}}).to_string().into_bytes()
    }

    fn seen(tools: Value) -> Value {
        let seen: Value = serde_json::from_slice(&edited(&listed(&tools))).expect("JSON");
        assert_eq!(seen["result"]["nextCursor"], "c");
        seen["result"]["tools"].clone()
    }

    #[test]
    fn an_output_schema_is_one_of_an_object() {
        let object = json!([{"name": "a", "outputSchema": {"type": "object", "properties": {"x": {"$ref": "#/$defs/y"}}}}, {"name": "b"}]);
        assert_eq!(seen(object.clone()), object);
        let schema = json!({"type": "array", "items": {"$ref": "#/$defs/y"}, "$defs": {"y": {"anyOf": [{"$ref": "#"}, {"$ref": "other"}]}}});
        let moved = json!({"type": "array", "items": {"$ref": "#/properties/result/$defs/y"},
            "$defs": {"y": {"anyOf": [{"$ref": "#/properties/result"}, {"$ref": "other"}]}}});
        let around =
            |schema: Value| json!({"type": "object", "properties": {"result": schema}, "required": ["result"]});
        assert_eq!(
            seen(json!([{"name": "a", "outputSchema": schema}])),
            json!([{"name": "a", "outputSchema": around(moved)}])
        );
        let named = json!({"$id": "x", "anyOf": [{"$ref": "#/$defs/y"}]});
        assert_eq!(
            seen(json!([{"name": "a", "outputSchema": named}])),
            json!([{"name": "a", "outputSchema": around(named)}])
        );
        assert_eq!(seen(json!([{"name": "a", "outputSchema": true}]))[0]["outputSchema"], around(json!({})));
    }

    #[test]
    fn properties_have_schemas_that_are_objects() {
        let tools = json!([{"name": "a", "inputSchema": {"type": "object", "properties": {"x": true, "y": false, "z": {}}},
            "outputSchema": {"type": "object", "properties": {"x": true}}}]);
        let expected = json!([{"name": "a", "inputSchema": {"type": "object", "properties": {"x": {}, "y": {"not": {}}, "z": {}}},
            "outputSchema": {"type": "object", "properties": {"x": {}}}}]);
        assert_eq!(seen(tools), expected);
    }

    #[test]
    fn output_schemas_are_left_out_by_name() {
        let tool = |name: &str| json!({"name": name, "outputSchema": {"type": "array"}, "x": 1});
        let message = listed(&json!([tool("a"), tool("b"), {"name": "c"}]));
        let edited = without_output_schemas(&message, &["b".to_owned(), "c".to_owned()]);
        let edited: Value = serde_json::from_slice(&edited).expect("JSON");
        assert_eq!(edited["result"]["tools"], json!([tool("a"), {"name": "b", "x": 1}, {"name": "c"}]));
    }

    #[test]
    fn calls_need_headers_and_wrapping() {
        let schema =
            |name: &str| json!({"type": "object", "properties": {"r": {"type": "string", "x-mcp-header": name}}});
        let tools = json!([{"name": "a", "inputSchema": schema("R")}, {"name": "b", "inputSchema": schema("a b")},
            {"name": "c", "outputSchema": {"type": "string"}}, {"name": "d"}]);
        let facts = tool_facts(&listed(&tools));
        let of = |name: &str| facts.iter().find(|(known, _)| known == name).and_then(|(_, facts)| facts.clone());
        assert_eq!((facts.len(), of("b"), of("d")), (4, None, None));
        assert_eq!(
            (of("a").expect("headers").headers[0].name.as_str(), of("c").expect("a schema").is_wrapped),
            ("R", true)
        );
        let names: Vec<_> = seen(tools).as_array().expect("a list").iter().map(|tool| tool["name"].clone()).collect();
        assert_eq!(names, ["a", "c", "d"]);
        assert!(tool_facts(br#"{"result":{"tools":7}}"#).is_empty());
    }
}
