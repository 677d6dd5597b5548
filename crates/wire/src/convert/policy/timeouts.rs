//! Timeouts, beside the one field that readers and writers of the release before know.

use std::time::Duration;

use fairmesh_model::Timeouts;

use super::micros;
use crate::v1;

/// What the release before writes where a policy says nothing, and what it does then.
const DEFAULT_BEFORE: Duration = Duration::from_secs(15);
/// The longest that the release before takes.
const MOST_BEFORE: Duration = Duration::from_secs(3600);

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

/// `timeout_us` of a policy.
pub(super) fn of_policy_before(timeouts: &Timeouts) -> u64 {
    micros(timeouts.total.unwrap_or(DEFAULT_BEFORE).min(MOST_BEFORE))
}

/// `timeout_us` of a route.
pub(super) fn of_route_before(timeouts: &Timeouts) -> u64 {
    timeouts.total.map_or(0, |total| micros(total.min(MOST_BEFORE)))
}

/// Absent where `timeout_us` says all of it.
pub(super) fn write_route(timeouts: Timeouts) -> Option<v1::Timeouts> {
    let is_told = timeouts
        == Timeouts { total: timeouts.total.filter(|total| *total <= MOST_BEFORE), ..Timeouts::default() };
    (!is_told).then(|| timeouts.into())
}

pub(super) fn read_policy(message: Option<v1::Timeouts>, before_us: u64) -> Timeouts {
    let total = Some(Duration::from_micros(before_us)).filter(|total| *total != DEFAULT_BEFORE);
    message.map_or(Timeouts { total, ..Timeouts::default() }, read)
}

pub(super) fn read_route(message: Option<v1::Timeouts>, before_us: u64) -> Timeouts {
    message.map_or(Timeouts { total: time(before_us), ..Timeouts::default() }, read)
}
