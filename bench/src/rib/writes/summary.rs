//! Figures of the report about writes.

use super::{MEGABYTES, Ours, Pace, Scale, WRITES};
use crate::report::Report;

/// Adds the figures of our side and of plain etcd.
pub(super) fn add(scale: Scale, quick: bool, ours: &Ours, etcd: Pace, report: &mut Report) {
    let gb = |bytes: u64| bytes as f64 / 1e9;
    let ms = |nanoseconds: u64| nanoseconds as f64 / 1e6;
    let scaled = if quick { " (--quick; 12 GB without)" } else { "" };
    let note = format!(
        "batches for {} s, durable, on {:.1} GB{scaled}; at {WRITES} a second p50 {:.1} ms, p99 {:.1} ms; etcd on {:.1} GB {:.0}, \
         p50 {:.1} ms, p99 {:.1} ms",
        scale.length.as_secs(),
        gb(ours.store),
        ms(ours.pace.paced.p50),
        ms(ours.pace.paced.p99),
        gb(scale.etcd),
        etcd.writes_per_s,
        ms(etcd.paced.p50),
        ms(etcd.paced.p99),
    );
    report.figure_at_least("writes_per_s", ours.pace.writes_per_s, WRITES as f64, note);
    let anew = match ours.anew {
        0 => String::new(),
        anew => format!("; the watcher fell behind and was sent everything anew {anew} times"),
    };
    let note = format!(
        "MB a second of keys and values, all of them seen by one watcher{anew}; {:.2} ms of CPU a batch; etcd {:.1}",
        ours.cpu * 1e3,
        etcd.mb_per_s
    );
    report.figure_at_least("mb_per_s", ours.pace.mb_per_s, MEGABYTES, note);
    let part = |bytes: u64| gb(bytes) / gb(ours.store);
    let (before, disk) = (part(ours.memory_at_start), part(ours.disk));
    let note = format!(
        "GB in memory for each of records after the writes, {before:.2} before; {disk:.2} GB on disk"
    );
    report.figure("memory_per_gb", part(ours.memory), None, note);
    report.figure(
        "start_s",
        ours.start.as_secs_f64(),
        None,
        "seconds until the control plane serves all that",
    );
}
