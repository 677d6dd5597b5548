#![no_main]

use fairmesh_fuzz::{known, serve_http2};

libfuzzer_sys::fuzz_target!(init: known::keep_quiet(), |data: &[u8]| serve_http2::run(data));
