#![no_main]

use fairmesh_fuzz::{hpack, known};

libfuzzer_sys::fuzz_target!(init: known::keep_quiet(), |data: &[u8]| hpack::run(data));
