//! A replica whose clock jumps.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::Path,
    process::Command,
};

use crate::harness::Suite;

/// Environment that gives a process a settable clock: a shared object that overrides functions of the C library, and
/// the file with the clock offset. Time namespaces do not cover the wall clock, and setting this machine's clock would
/// affect every process.
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

/// One day, in nanoseconds.
const DAY: i64 = 86_400_000_000_000;

/// Sets the clock of the replica in `us` one day ahead and then two days back; the replica then restarts with a copy
/// dated in the future. A running process measures ages by a monotonic clock; the wall clock counts only for the age of
/// a copy found on disk.
pub(super) fn jumps(suite: &Suite) -> String {
    let us = &suite.fleet.us;
    // Written in place: the process maps the file, and a truncated file would end the process with SIGBUS.
    let offset = File::options().write(true).open(suite.fleet.path("clock-offset")).unwrap();
    let set = |days: i64| offset.write_all_at(&(days * DAY).to_ne_bytes(), 0).unwrap();
    let fresh = || {
        suite.goes_on();
        suite.until("it counts as fresh", || us.metric("fairmesh_replica_data_age_seconds") == Some(0.0));
    };
    set(1);
    fresh();
    set(-2);
    fresh();
    us.daemon.kill();
    let before = us.daemon.log().len();
    let date = || {
        let output = Command::new("date").args(["-u", "-d", "2 days ago", "+%F"]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    // The date may change meanwhile.
    let earliest = date();
    us.daemon.revive();
    suite.until("it follows again", || us.metric("fairmesh_replica_connected") == Some(1.0));
    fresh();
    let (latest, log) = (date(), us.daemon.log());
    let first = &log[before..];
    assert!(
        [earliest, latest].iter().any(|day| first.starts_with(day.trim())),
        "its clock is not set: {first}"
    );
    set(0);
    fresh();
    "a day ahead, two days back, a restart, and right again".into()
}
