#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fairmesh_fuzz::serve_http1::run(data));
