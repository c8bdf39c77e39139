#![no_main]

#[path = "../cases/session_refusal.rs"]
mod case;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| case::run(bytes));
