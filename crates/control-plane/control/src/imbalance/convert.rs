//! Converts rows, usages and reports to messages and back.

use std::sync::Arc;

use fairmesh_imbalance::{
    Area, Breakdown, Causes, ImbalanceReport, Line, Measure, Row, ServiceOutlier, Slice, Usage,
};
use fairmesh_model::{InstanceId, Location};
use fairmesh_wire::v1;
use prost::Message as _;

pub(super) fn row(row: &Row) -> v1::ImbalanceRow {
    let slices = row.slices.iter().map(|((dimension, name), slice)| v1::imbalance_row::Slice {
        dimension: Breakdown::Slice(*dimension).name().into(),
        line: Some(line(name, slice.area, slice.own_peak)),
    });
    v1::ImbalanceRow {
        minutes: row.minutes,
        whole: Some(area(row.whole)),
        causes: Some(causes(row.causes)),
        slices: slices.collect(),
    }
}

/// Parses a row. `None` if the bytes are not a valid row.
pub(super) fn read_row(bytes: &[u8]) -> Option<Row> {
    let row = v1::ImbalanceRow::decode(bytes).ok()?;
    let slices = row.slices.into_iter().filter_map(|slice| {
        let (Breakdown::Slice(dimension), line) = (Breakdown::named(&slice.dimension)?, slice.line?) else {
            return None;
        };
        let slice = Slice { area: read_area(line.area?), own_peak: line.own_peak_millicore_minutes };
        Some(((dimension, Arc::from(line.name)), slice))
    });
    let parts = row.causes?;
    let causes = Causes {
        regions: parts.regions,
        host_types: parts.host_types,
        within: parts.within,
        unknown: parts.unknown,
    };
    let slices = slices.collect();
    Some(Row { minutes: row.minutes, whole: read_area(row.whole?), causes, slices })
}

/// Encodes the usages of a service's instances in one minute.
pub(super) fn open_usages(usages: &[(InstanceId, Arc<Location>, Usage)]) -> v1::OpenUsages {
    let mut locations: Vec<Arc<Location>> = Vec::new();
    let mut message = v1::OpenUsages::default();
    for (instance, location, usage) in usages {
        let known = locations.iter().position(|known| known == location);
        let location = known.unwrap_or_else(|| {
            locations.push(location.clone());
            message.locations.push((**location).clone().into());
            locations.len() - 1
        });
        message.instances.push(v1::open_usages::Instance {
            instance: instance.to_string(),
            usage: Some(v1::MinuteUsage {
                minute: 0,
                cpu_us: usage.cpu_us,
                covered_ms: usage.covered_ms,
                limit_millicores: usage.limit_millicores,
                requests: usage.requests,
            }),
            location: u32::try_from(location).unwrap_or(u32::MAX),
        });
    }
    message
}

/// The inverse of [`open_usages`]. Invalid entries are skipped.
pub(super) fn read_open(usages: v1::OpenUsages) -> Vec<(InstanceId, Location, Usage)> {
    let locations: Vec<Option<Location>> =
        usages.locations.into_iter().map(|location| location.try_into().ok()).collect();
    let read = |one: v1::open_usages::Instance| {
        let location = locations.get(one.location as usize)?.clone()?;
        Some((InstanceId::new(one.instance).ok()?, location, usage(one.usage?)))
    };
    usages.instances.into_iter().filter_map(read).collect()
}

pub(super) fn usage(usage: v1::MinuteUsage) -> Usage {
    Usage {
        cpu_us: usage.cpu_us,
        covered_ms: usage.covered_ms,
        limit_millicores: usage.limit_millicores,
        requests: usage.requests,
    }
}

pub(super) fn report(report: &ImbalanceReport) -> v1::ReadImbalanceResponse {
    v1::ReadImbalanceResponse {
        by: report.by.name().into(),
        minutes: report.minutes,
        lines: report.lines.iter().map(report_line).collect(),
        total: Some(area(report.total)),
        causes: Some(causes(report.causes)),
        outliers: report.outliers.iter().map(outlier).collect(),
    }
}

fn report_line(one: &Line) -> v1::ImbalanceLine {
    v1::ImbalanceLine {
        minutes: one.minutes,
        causes: one.causes.map(causes),
        ..line(&one.name, one.area, one.own_peak)
    }
}

fn outlier(entry: &ServiceOutlier) -> v1::ImbalanceOutlier {
    v1::ImbalanceOutlier {
        service: entry.service.to_string(),
        host_type: entry.host_type.to_string(),
        instance: entry.outlier.instance.to_string(),
        off: entry.outlier.off,
        per_request: entry.outlier.by == Measure::CpuPerRequest,
    }
}

fn line(name: &str, of: Area, own_peak: u64) -> v1::ImbalanceLine {
    v1::ImbalanceLine {
        name: name.into(),
        area: Some(area(of)),
        own_peak_millicore_minutes: own_peak,
        minutes: 0,
        causes: None,
    }
}

fn area(area: Area) -> v1::Area {
    v1::Area {
        container_minutes: area.containers,
        used_millicore_minutes: area.used,
        peak_millicore_minutes: area.peak,
    }
}

fn read_area(area: v1::Area) -> Area {
    Area {
        containers: area.container_minutes,
        used: area.used_millicore_minutes,
        peak: area.peak_millicore_minutes,
    }
}

fn causes(causes: Causes) -> v1::Causes {
    v1::Causes {
        regions: causes.regions,
        host_types: causes.host_types,
        within: causes.within,
        unknown: causes.unknown,
    }
}

#[cfg(test)]
mod tests {
    use fairmesh_imbalance::Dimension;
    use fairmesh_model::{HostType, Region};

    use super::*;

    #[test]
    fn imbalance_rows_and_usages_are_equal_after_encoding_and_decoding() {
        let location = |region: &str, host_type: Option<&str>| Location {
            host_type: host_type.map(|name| HostType::new(name).unwrap()),
            ..Location::in_region(Region::new(region).unwrap())
        };
        let (eu, us) = (location("eu", Some("old")), location("us", None));
        let written = Row::of_minute([(&eu, 3_000), (&eu, 1_000), (&us, 500)]);
        assert_eq!(written.slices.keys().filter(|(of, _)| *of == Dimension::HostType).count(), 2);
        assert_eq!(read_row(&row(&written).encode_to_vec()), Some(written));

        let usage = Usage { cpu_us: 7, covered_ms: 60_000, limit_millicores: 500, requests: 9 };
        let (eu, us) = (Arc::new(eu), Arc::new(us));
        let name = |name: &str| InstanceId::new(name).unwrap();
        let usage = [(name("a"), eu.clone(), usage), (name("b"), us.clone(), usage), (name("c"), eu, usage)];
        let message = open_usages(&usage);
        assert_eq!(message.locations.len(), 2);
        let read: Vec<_> = read_open(message)
            .into_iter()
            .map(|(instance, location, usage)| (instance, Arc::new(location), usage))
            .collect();
        assert_eq!(read, usage);
    }
}
