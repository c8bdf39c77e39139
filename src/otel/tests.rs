//! Unit tests of spans.

use super::call_span::CallRecord;

const RECORD: &str = concat!(
    r#"{"span":"00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01","#,
    r#""parent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01","began_us":1795844706662009,"task":true,"#,
    r#""name":{"method":"tools/call","tool":"slow"}}"#,
);

#[test]
fn the_recorded_form_is_read_and_written_unchanged() {
    let record: CallRecord = serde_json::from_str(RECORD).unwrap();
    assert_eq!(serde_json::to_string(&record).unwrap(), RECORD);
    let short = r#"{"span":"00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01","began_us":1}"#;
    let record: CallRecord = serde_json::from_str(short).unwrap();
    assert_eq!(serde_json::to_string(&record).unwrap(), short);
}
