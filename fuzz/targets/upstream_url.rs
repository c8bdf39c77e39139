#![no_main]

#[path = "../cases/upstream_url.rs"]
mod case;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| case::run(bytes));
