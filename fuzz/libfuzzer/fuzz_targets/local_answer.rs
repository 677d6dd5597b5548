#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fairmesh_fuzz::local_answer::run(data));
