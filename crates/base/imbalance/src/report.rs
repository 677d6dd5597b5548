use std::collections::BTreeMap;

use fairmesh_model::{HostType, ServiceName};
use serde::Serialize;

use crate::{Area, Causes, Dimension, Measure, Minute, Outlier, Row, Tier};

/// The breakdown of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Breakdown {
    /// One line per service.
    #[default]
    Service,
    /// One line per value of a dimension, over all services.
    Slice(Dimension),
    /// One line per hour or day, over all services.
    Time(Tier),
    /// One line per cause.
    Cause,
}

/// One line of a report: sums over time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The service, slice, time (UTC) or cause.
    pub name: String,
    /// Number of minutes.
    pub minutes: u64,
    /// Area of the line. Slices use the p99 of whole services, so that lines add up to the total.
    pub area: Area,
    /// Peak by the slice's own p99, in millicore-minutes. For services, equal to `area.peak`.
    pub own_peak: u64,
    /// Causes of a service's waste, which add up to its waste; `None` for other lines.
    pub causes: Option<Causes>,
}

/// An outlier with its service and hardware type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceOutlier {
    /// The service.
    pub service: ServiceName,
    /// The type of hardware.
    pub host_type: HostType,
    /// The instance and its deviation.
    pub outlier: Outlier,
}

/// The waste of some services over some minutes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImbalanceReport {
    /// Property by which the lines are broken down.
    pub by: Breakdown,
    /// Number of minutes covered, which is that of the service with the most minutes.
    pub minutes: u64,
    /// Lines, either most wasteful first or in chronological order. Empty for the breakdown by cause; see
    /// [`ImbalanceReport::causes`].
    pub lines: Vec<Line>,
    /// The sum of all lines.
    pub total: Area,
    /// The causes of the waste, which add up to the total waste.
    pub causes: Causes,
    /// Machines that differ from their peers.
    pub outliers: Vec<ServiceOutlier>,
    /// The newest minute with figures, if the source of the report says so. Of hours and days that are stored as one
    /// row, it is their last minute, and their first one while they last or minutes of them may be missing.
    pub newest: Option<Minute>,
}

impl Breakdown {
    /// All breakdowns.
    pub const ALL: [Self; 8] = [
        Self::Service,
        Self::Slice(Dimension::Region),
        Self::Slice(Dimension::Zone),
        Self::Slice(Dimension::Cluster),
        Self::Slice(Dimension::HostType),
        Self::Time(Tier::Hour),
        Self::Time(Tier::Day),
        Self::Cause,
    ];

    /// The name in queries and responses.
    pub fn name(self) -> &'static str {
        match self {
            Self::Service => "service",
            Self::Slice(Dimension::Region) => "region",
            Self::Slice(Dimension::Zone) => "zone",
            Self::Slice(Dimension::Cluster) => "cluster",
            Self::Slice(Dimension::HostType) => "host-type",
            Self::Time(tier) => tier.name(),
            Self::Cause => "cause",
        }
    }

    /// The first minute of the period that contains `minute`; constant for breakdowns without periods.
    pub fn time(self, minute: Minute) -> Minute {
        match self {
            Self::Time(tier) => tier.bucket(minute),
            _ => Minute(0),
        }
    }

    /// The breakdown called `name`; `None` if there is none.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|by| by.name() == name)
    }
}

impl ImbalanceReport {
    /// Builds a report. Each row covers one service over the whole time, or over the period that begins with the
    /// row's minute ([`Breakdown::time`]).
    pub fn of(
        by: Breakdown,
        rows: &BTreeMap<(Minute, ServiceName), Row>,
        outliers: Vec<ServiceOutlier>,
    ) -> Self {
        let mut report = Self { by, outliers, ..Self::default() };
        let mut lines: BTreeMap<String, Line> = BTreeMap::new();
        let mut seen: BTreeMap<&ServiceName, u64> = BTreeMap::new();
        for ((time, service), row) in rows {
            *seen.entry(service).or_default() += row.minutes;
            report.total += row.whole;
            report.causes += row.causes;
            match by {
                Breakdown::Service => {
                    let line = add(&mut lines, service.to_string(), row.whole, row.whole.peak);
                    *line.causes.get_or_insert_default() += row.causes;
                }
                Breakdown::Time(tier) => {
                    let name = period_name(tier, *time);
                    let line = add(&mut lines, name, row.whole, row.whole.peak);
                    line.minutes = line.minutes.max(row.minutes);
                }
                Breakdown::Slice(dimension) => {
                    for ((_, name), slice) in row.slices.iter().filter(|((of, _), _)| *of == dimension) {
                        add(&mut lines, name.to_string(), slice.area, slice.own_peak);
                    }
                }
                Breakdown::Cause => {}
            }
        }
        report.minutes = seen.into_values().max().unwrap_or_default();
        report.lines = lines.into_values().collect();
        if !matches!(by, Breakdown::Time(_)) {
            report.lines.iter_mut().for_each(|line| line.minutes = report.minutes);
            let wasted = |line: &Line| std::cmp::Reverse(line.area.wasted());
            report.lines.sort_by(|a, b| wasted(a).cmp(&wasted(b)).then_with(|| a.name.cmp(&b.name)));
        }
        report
    }

    /// The report for display and JSON, with averages in cores beside the sums.
    pub fn view(&self) -> View {
        let line = |line: &Line| Figures {
            causes: line.causes.map(|causes| causes.views(line.minutes)).unwrap_or_default(),
            ..Figures::of(&line.name, line.area, line.own_peak, line.minutes)
        };
        View {
            by: self.by.name(),
            minutes: self.minutes,
            lines: self.lines.iter().map(line).collect(),
            total: Figures::of("total", self.total, self.total.peak, self.minutes),
            causes: self.causes.views(self.minutes),
            outliers: self.outliers.iter().map(OutlierView::from).collect(),
        }
    }
}

/// Adds to the line called `name`.
fn add(lines: &mut BTreeMap<String, Line>, name: String, area: Area, own_peak: u64) -> &mut Line {
    let line = lines.entry(name).or_insert_with_key(|name| Line {
        name: name.clone(),
        minutes: 0,
        area: Area::default(),
        own_peak: 0,
        causes: None,
    });
    line.area += area;
    line.own_peak = line.own_peak.saturating_add(own_peak);
    line
}

/// The name of the period that begins with minute `first`. Names sort chronologically.
fn period_name(tier: Tier, first: Minute) -> String {
    let (days, minutes) = (first.0 / (24 * 60), first.0 % (24 * 60));
    let (year, month, day) = date(days);
    match tier {
        Tier::Day => format!("{year}-{month:02}-{day:02}"),
        _ => format!("{year}-{month:02}-{day:02}T{:02}:{:02}Z", minutes / 60, minutes % 60),
    }
}

/// Converts a number of days after 1970-01-01 to a date (H. Hinnant, `civil_from_days`). Years begin in March, so
/// that the leap day is the last day. A date library was rejected, since it would contain a clock.
fn date(days: u32) -> (u32, u32, u32) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year + u32::from(month <= 2), month, day)
}

impl Causes {
    /// The causes with their names.
    pub fn named(&self) -> [(&'static str, i64); 4] {
        [
            ("between regions", self.regions),
            ("between host types", self.host_types),
            ("within a host type", self.within),
            ("unknown", self.unknown),
        ]
    }

    /// The causes for display, as averages over `minutes` minutes.
    fn views(&self, minutes: u64) -> Vec<CauseView> {
        let all = self.total();
        let view = |(name, wasted)| CauseView {
            name,
            wasted_cores: cores(wasted, minutes),
            share: (all != 0).then(|| cores(wasted, 1) / cores(all, 1)),
            wasted_millicore_minutes: wasted,
        };
        self.named().map(view).into()
    }
}

/// The JSON form of a report.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct View {
    /// The breakdown of the lines.
    pub by: &'static str,
    /// Number of minutes.
    pub minutes: u64,
    /// Lines, most wasteful first.
    pub lines: Vec<Figures>,
    /// The sum of all lines.
    pub total: Figures,
    /// The causes of the waste.
    pub causes: Vec<CauseView>,
    /// Machines that differ from their peers.
    pub outliers: Vec<OutlierView>,
}

/// One line, with averages over its minutes and the sums that they are computed from.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Figures {
    /// The service, slice or time.
    pub name: String,
    /// Number of minutes.
    pub minutes: u64,
    /// Average number of containers.
    pub containers: f64,
    /// Average cores used.
    pub used_cores: f64,
    /// The p99 of the cores used per container.
    pub p99_cores: f64,
    /// Mean cores used per container.
    pub mean_cores: f64,
    /// Average cores kept free because of the hottest containers.
    pub wasted_cores: f64,
    /// 1 + wasted / used; `null` if nothing was used.
    pub index: Option<f64>,
    /// Index of the slice by its own p99. The rest of its waste is due to hotter slices.
    pub own_index: Option<f64>,
    /// Container-minutes.
    pub container_minutes: u64,
    /// Millicore-minutes used.
    pub used_millicore_minutes: u64,
    /// Millicore-minutes wasted.
    pub wasted_millicore_minutes: i64,
    /// Causes of a service's waste; empty for other lines.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<CauseView>,
}

/// A cause of waste.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CauseView {
    /// Name of the cause.
    pub name: &'static str,
    /// Wasted cores due to this cause.
    pub wasted_cores: f64,
    /// The cause's share of the total waste; `null` if there is no waste.
    pub share: Option<f64>,
    /// Wasted millicore-minutes, from which `wasted_cores` is computed.
    pub wasted_millicore_minutes: i64,
}

/// An outlier.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OutlierView {
    /// The service.
    pub service: String,
    /// The type of hardware.
    pub host_type: String,
    /// The instance.
    pub instance: String,
    /// Relative deviation from the median: 0.4 is 40 % above.
    pub off: f64,
    /// The measure: `cpu-per-request`, or `cpu` if calls are not counted.
    pub measure: &'static str,
}

/// Floating-point figures, for display only: no decision depends on them.
#[allow(
    clippy::cast_precision_loss,
    reason = "sums below 2^53 are exact, and larger ones are display rounded"
)]
mod display {
    pub(super) fn ratio(a: u64, b: u64) -> Option<f64> {
        (b > 0).then(|| a as f64 / b as f64)
    }

    /// Average cores, from a sum of millicore-minutes.
    pub(super) fn cores(millicore_minutes: i64, minutes: u64) -> f64 {
        millicore_minutes as f64 / 1000.0 / minutes.max(1) as f64
    }
}

use display::{cores, ratio};

impl Figures {
    fn of(name: &str, area: Area, own_peak: u64, minutes: u64) -> Self {
        let signed = |sum: u64| i64::try_from(sum).unwrap_or(i64::MAX);
        Self {
            name: name.to_owned(),
            minutes,
            containers: ratio(area.containers, minutes).unwrap_or_default(),
            used_cores: cores(signed(area.used), minutes),
            p99_cores: cores(signed(area.peak), area.containers),
            mean_cores: cores(signed(area.used), area.containers),
            wasted_cores: cores(area.wasted(), minutes),
            index: ratio(area.peak, area.used),
            own_index: ratio(own_peak, area.used),
            container_minutes: area.containers,
            used_millicore_minutes: area.used,
            wasted_millicore_minutes: area.wasted(),
            causes: Vec::new(),
        }
    }
}

impl From<&ServiceOutlier> for OutlierView {
    fn from(entry: &ServiceOutlier) -> Self {
        Self {
            service: entry.service.to_string(),
            host_type: entry.host_type.to_string(),
            instance: entry.outlier.instance.to_string(),
            off: cores(entry.outlier.off, 1),
            measure: entry.outlier.by.name(),
        }
    }
}

impl Measure {
    /// The name in responses.
    pub fn name(self) -> &'static str {
        match self {
            Self::CpuPerRequest => "cpu-per-request",
            Self::Cpu => "cpu",
        }
    }
}

#[cfg(test)]
mod tests;
