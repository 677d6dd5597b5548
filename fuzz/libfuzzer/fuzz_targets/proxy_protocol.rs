#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fairmesh_fuzz::proxy_protocol::run(data));
