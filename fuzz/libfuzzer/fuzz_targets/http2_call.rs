#![no_main]

use fairmesh_fuzz::{known, http2_call};

libfuzzer_sys::fuzz_target!(init: known::keep_quiet(), |data: &[u8]| http2_call::run(data));
