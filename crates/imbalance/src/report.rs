use std::collections::BTreeMap;

use fairmesh_model::{HostType, ServiceName};
use serde::Serialize;

use crate::{Area, Causes, Dimension, Measure, Outlier, Row};

/// By what a report is broken down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum By {
    /// A line a service.
    #[default]
    Service,
    /// A line for each value of a dimension, over all services.
    Slice(Dimension),
    /// A line a cause.
    Cause,
}

/// One line: sums over time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The service, slice or cause.
    pub name: String,
    /// Its share; of a slice by the p99 of whole services, so that lines add up to the total.
    pub area: Area,
    /// What the slice would take by its own p99, in millicore-minutes; for services the same as `area.peak`.
    pub own_peak: u64,
}

/// An outlier and where it is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Strayed {
    /// The service.
    pub service: ServiceName,
    /// The type of hardware.
    pub host_type: HostType,
    /// Who, and by how much.
    pub outlier: Outlier,
}

/// The waste of some services over some minutes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// By what the lines are told apart.
    pub by: By,
    /// How many minutes it is about: those of the service that was seen in most.
    pub minutes: u64,
    /// The most wasteful first; none by cause, which [`Report::causes`] has.
    pub lines: Vec<Line>,
    /// The sum of all lines.
    pub total: Area,
    /// Where the waste comes from; adds up to that of the total.
    pub causes: Causes,
    /// Machines that differ from their like.
    pub outliers: Vec<Strayed>,
}

impl By {
    /// Every one.
    pub const ALL: [Self; 6] = [
        Self::Service,
        Self::Slice(Dimension::Region),
        Self::Slice(Dimension::Zone),
        Self::Slice(Dimension::Cluster),
        Self::Slice(Dimension::HostType),
        Self::Cause,
    ];

    /// What it is called in questions and answers.
    pub fn name(self) -> &'static str {
        match self {
            Self::Service => "service",
            Self::Slice(Dimension::Region) => "region",
            Self::Slice(Dimension::Zone) => "zone",
            Self::Slice(Dimension::Cluster) => "cluster",
            Self::Slice(Dimension::HostType) => "host-type",
            Self::Cause => "cause",
        }
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|by| by.name() == name)
    }
}

impl Report {
    /// Lays rows out; each is one service over the whole time.
    pub fn of(by: By, rows: &BTreeMap<ServiceName, Row>, outliers: Vec<Strayed>) -> Self {
        let mut report = Self { by, outliers, ..Self::default() };
        let mut lines: BTreeMap<String, Line> = BTreeMap::new();
        for (service, row) in rows {
            report.minutes = report.minutes.max(row.minutes);
            report.total += row.whole;
            report.causes += row.causes;
            match by {
                By::Service => add(&mut lines, service.to_string(), row.whole, row.whole.peak),
                By::Slice(dimension) => {
                    for ((_, name), slice) in row.slices.iter().filter(|((of, _), _)| *of == dimension) {
                        add(&mut lines, name.to_string(), slice.area, slice.own_peak);
                    }
                }
                By::Cause => {}
            }
        }
        report.lines = lines.into_values().collect();
        report.lines.sort_by(|a, b| b.area.wasted().cmp(&a.area.wasted()).then_with(|| a.name.cmp(&b.name)));
        report
    }

    /// The same for people and programs: cores on average, besides the sums.
    pub fn view(&self) -> View {
        let line = |line: &Line| Figures::of(&line.name, line.area, line.own_peak, self.minutes);
        View {
            by: self.by.name(),
            minutes: self.minutes,
            lines: self.lines.iter().map(line).collect(),
            total: Figures::of("total", self.total, self.total.peak, self.minutes),
            causes: self.causes.named().map(|(name, wasted)| CauseView::of(name, wasted, self)).into(),
            outliers: self.outliers.iter().map(OutlierView::from).collect(),
        }
    }
}

fn add(lines: &mut BTreeMap<String, Line>, name: String, area: Area, own_peak: u64) {
    let line = lines.entry(name).or_insert_with_key(|name| Line {
        name: name.clone(),
        area: Area::default(),
        own_peak: 0,
    });
    line.area += area;
    line.own_peak = line.own_peak.saturating_add(own_peak);
}

impl Causes {
    /// The parts with what they are called.
    pub fn named(&self) -> [(&'static str, i64); 4] {
        [
            ("between regions", self.regions),
            ("between host types", self.host_types),
            ("within a host type", self.within),
            ("unknown", self.unknown),
        ]
    }
}

/// A report as programs read it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct View {
    /// By what the lines are told apart.
    pub by: &'static str,
    /// How many minutes it is about.
    pub minutes: u64,
    /// The most wasteful first.
    pub lines: Vec<Figures>,
    /// The sum of all lines.
    pub total: Figures,
    /// Where the waste comes from.
    pub causes: Vec<CauseView>,
    /// Machines that differ from their like.
    pub outliers: Vec<OutlierView>,
}

/// A line: averages over the time of the report, and the sums that they come from.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Figures {
    /// The service or slice.
    pub name: String,
    /// Containers.
    pub containers: f64,
    /// Cores that they used.
    pub used_cores: f64,
    /// The p99 of the cores that a container used.
    pub p99_cores: f64,
    /// The mean of them.
    pub mean_cores: f64,
    /// Cores kept free because of the hottest containers.
    pub wasted_cores: f64,
    /// 1 + wasted / used; `null` where nothing was used.
    pub index: Option<f64>,
    /// The index of the slice by its own p99; the rest of its waste is what sets it apart from hotter slices.
    pub own_index: Option<f64>,
    /// Container-minutes.
    pub container_minutes: u64,
    /// Millicore-minutes used.
    pub used_millicore_minutes: u64,
    /// Millicore-minutes wasted.
    pub wasted_millicore_minutes: i64,
}

/// A cause.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CauseView {
    /// What it is called.
    pub name: &'static str,
    /// Its part of the wasted cores.
    pub wasted_cores: f64,
    /// The same as a share of all waste; `null` where there is none.
    pub share: Option<f64>,
    /// The sum behind it.
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
    /// Who.
    pub instance: String,
    /// How far off the median it is: 0.4 is 40 % above.
    pub off: f64,
    /// What was compared: `cpu-per-request`, or `cpu` where nobody counts calls.
    pub measure: &'static str,
}

/// For people only: nothing is decided by these.
#[allow(clippy::cast_precision_loss, reason = "sums below 2^53 are exact, and larger ones are shown rounded")]
mod shown {
    pub(super) fn ratio(a: u64, b: u64) -> Option<f64> {
        (b > 0).then(|| a as f64 / b as f64)
    }

    /// Average cores of a sum of millicore-minutes.
    pub(super) fn cores(millicore_minutes: i64, minutes: u64) -> f64 {
        millicore_minutes as f64 / 1000.0 / minutes.max(1) as f64
    }
}

use shown::{cores, ratio};

impl Figures {
    fn of(name: &str, area: Area, own_peak: u64, minutes: u64) -> Self {
        let signed = |sum: u64| i64::try_from(sum).unwrap_or(i64::MAX);
        Self {
            name: name.to_owned(),
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
        }
    }
}

impl CauseView {
    fn of(name: &'static str, wasted: i64, report: &Report) -> Self {
        let all = report.causes.total();
        let share = (all != 0).then(|| cores(wasted, 1) / cores(all, 1));
        let wasted_cores = cores(wasted, report.minutes);
        Self { name, wasted_cores, share, wasted_millicore_minutes: wasted }
    }
}

impl From<&Strayed> for OutlierView {
    fn from(strayed: &Strayed) -> Self {
        Self {
            service: strayed.service.to_string(),
            host_type: strayed.host_type.to_string(),
            instance: strayed.outlier.instance.to_string(),
            off: cores(strayed.outlier.off, 1),
            measure: strayed.outlier.by.name(),
        }
    }
}

impl Measure {
    /// What it is called in answers.
    pub fn name(self) -> &'static str {
        match self {
            Self::CpuPerRequest => "cpu-per-request",
            Self::Cpu => "cpu",
        }
    }
}

#[cfg(test)]
mod tests;
