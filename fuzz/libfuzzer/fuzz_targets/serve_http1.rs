#![no_main]

use fairmesh_fuzz::{known, serve_http1};

libfuzzer_sys::fuzz_target!(init: known::keep_quiet(), |data: &[u8]| serve_http1::run(data));
