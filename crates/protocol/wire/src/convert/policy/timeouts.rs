//! Timeouts, and the single timeout field of the previous release.

use std::time::Duration;

use fairmesh_model::Timeouts;

use super::micros;
use crate::v1;

/// Default timeout that the previous release writes and applies.
const LEGACY_DEFAULT: Duration = Duration::from_secs(15);
/// Maximum timeout that the previous release accepts.
const LEGACY_MAX: Duration = Duration::from_secs(3600);

impl From<Timeouts> for v1::Timeouts {
    fn from(timeouts: Timeouts) -> Self {
        let time = |time: Option<Duration>| time.map_or(0, micros);
        Self {
            total_us: time(timeouts.total),
            response_header_us: time(timeouts.response_header),
            idle_us: time(timeouts.idle),
        }
    }
}

fn read(message: v1::Timeouts) -> Timeouts {
    Timeouts {
        total: time(message.total_us),
        response_header: time(message.response_header_us),
        idle: time(message.idle_us),
    }
}

fn time(us: u64) -> Option<Duration> {
    (us > 0).then(|| Duration::from_micros(us))
}

/// Value of a policy's `timeout_us`, which the previous release reads.
pub(super) fn legacy_policy_timeout(timeouts: &Timeouts) -> u64 {
    micros(timeouts.total.unwrap_or(LEGACY_DEFAULT).min(LEGACY_MAX))
}

/// Value of a route's `timeout_us`, which the previous release reads.
pub(super) fn legacy_route_timeout(timeouts: &Timeouts) -> u64 {
    timeouts.total.map_or(0, |total| micros(total.min(LEGACY_MAX)))
}

/// Returns `None` if `timeout_us` alone represents these timeouts.
pub(super) fn write_route(timeouts: Timeouts) -> Option<v1::Timeouts> {
    let is_told = timeouts
        == Timeouts { total: timeouts.total.filter(|total| *total <= LEGACY_MAX), ..Timeouts::default() };
    (!is_told).then(|| timeouts.into())
}

pub(super) fn read_policy(message: Option<v1::Timeouts>, legacy_us: u64) -> Timeouts {
    let total = Some(Duration::from_micros(legacy_us)).filter(|total| *total != LEGACY_DEFAULT);
    message.map_or(Timeouts { total, ..Timeouts::default() }, read)
}

pub(super) fn read_route(message: Option<v1::Timeouts>, legacy_us: u64) -> Timeouts {
    message.map_or(Timeouts { total: time(legacy_us), ..Timeouts::default() }, read)
}
