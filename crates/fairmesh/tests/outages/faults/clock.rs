//! A replica whose clock jumps.

use std::{
    fs,
    path::Path,
    process::Command,
};

/// What puts a settable clock before a process: a shared object that answers for the C library, and the file with its
/// offset. Namespaces of time know no time of day, and setting this machine's clock would hit everybody on it.
pub(crate) fn preload(folder: &Path) -> Vec<(&'static str, String)> {
    let (source, object, offset) =
        (folder.join("clock.c"), folder.join("clock.so"), folder.join("clock-offset"));
    fs::write(&source, include_str!("clock.c")).unwrap();
    fs::write(&offset, [0; 8]).unwrap();
    let built = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&object).arg(&source).output();
    let built = built.expect("a C compiler, which linking needs too");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    vec![("LD_PRELOAD", text(&object)), ("CLOCK_OFFSET", text(&offset))]
}
